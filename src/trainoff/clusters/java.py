"""Finds the Java that Spark needs: where it is, which version, and whether it has the modules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LEAST, TRIED = 17, (17, 21)  # Spark 4 runs on 17 and later; it is tested with these by its makers
MODULE = "jdk.incubator.vector"  # Spark 4 does not start without it, and small runtimes leave it out
INSTALL = "apt-get install openjdk-17-jre-headless" if sys.platform == "linux" else "install a JDK 17 and set JAVA_HOME"


@dataclass(frozen=True)
class Java:
    """A Java on this machine. `lacks` says why Spark cannot use it, or is None."""

    home: Path
    version: str
    lacks: str | None = None

    @property
    def command(self) -> str:
        return str(self.home / "bin" / "java")


@cache
def find_java() -> Java | None:
    """The first Java that Spark can use; if there is none, the first there is, with what it lacks."""
    found = None
    for home in _homes():
        java = _examine(home)
        if java and java.lacks is None:
            return java
        found = found or java
    return found


def _homes() -> Iterator[Path]:
    """Where a Java may be: JAVA_HOME, PATH, the usual places. Each place once."""
    seen: set[Path] = set()
    for home in _candidates():
        place = home.resolve()
        if place not in seen and (place / "bin" / "java").exists():
            seen.add(place)
            yield place


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if command := shutil.which("java"):
        yield Path(command).resolve().parents[1]
    for pattern in ("/usr/lib/jvm/*", "/opt/java/*", "/opt/jdk*", "/Library/Java/JavaVirtualMachines/*/Contents/Home"):
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    yield from sorted(Path.home().glob(".sdkman/candidates/java/*"))


def _examine(home: Path) -> Java | None:
    """What a Java says of itself; None if it cannot even do that."""
    try:
        said = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "([^"]+)"', said)
    if not version:
        return None
    return Java(home, version[1], _lack(home, version[1]))


def _lack(home: Path, version: str) -> str | None:
    major = re.match(r"(?:1\.)?(\d+)", version)
    if not major or int(major[1]) < LEAST:
        return f"Java {version} in {home} is too old for Spark, which needs Java {LEAST}"
    if not _has_module(home):
        return f"Java {version} in {home} was built without the module {MODULE}, which Spark needs"
    return None


def _has_module(home: Path) -> bool:
    """Whether the runtime holds the module, by its release file or else by asking it."""
    release = home / "release"
    if release.exists() and (modules := re.search(r'^MODULES="([^"]*)"', release.read_text(), re.MULTILINE)):
        return MODULE in modules[1].split()
    try:
        listed = subprocess.run([home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return MODULE in listed.stdout
