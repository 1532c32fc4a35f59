"""Finds the Java that Spark needs: where it is, which version, and whether it has the modules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from trainoff.errors import TrainoffError

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


LIGHT_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # for JVMs that compute little: they start fast and stay small
# Spark puts its folder of settings on the class path, and with a folder there no classes are shared.
NOWHERE = "/nowhere"
ASKED = "TRAINOFF_SHARED_CLASSES"  # else Spark starts as it comes, and start-up times are everybody's
WORK = """
from pyspark import SparkContext
from pyspark.ml.classification import MultilayerPerceptronClassifier
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

for master in "local[1]", "local-cluster[1,1,1024]":
    context = SparkContext(master)
    weights = context.broadcast(b"weights")
    context.parallelize(range(4), 1).barrier().mapPartitions(lambda _: [weights.value]).cache().collect()
    if master == "local[1]":
        spark = SparkSession(context)
        rows = spark.createDataFrame([(float(n % 2), Vectors.dense([n, 1])) for n in range(4)], ["label", "features"])
        network = MultilayerPerceptronClassifier(layers=[2, 2, 2], maxIter=1).fit(rows.repartition(2).cache())
        network.transform(rows).select("label", "prediction").toArrow()
    context.stop()
"""  # in one JVM what executors do, and what a driver, a master and a worker do


def home() -> Path:
    """Where the pyspark package has Spark."""
    found = find_spec("pyspark")
    if not found or not found.origin:
        raise TrainoffError("Spark is not installed; pip install 'trainoff[spark]'")
    return Path(found.origin).parent


def place(java: Java) -> Path | None:
    """The file for a Java and the Spark of this Python, whether or not it is there."""
    try:
        return Path(sys.prefix, "share", "trainoff", f"spark-{version('pyspark')}-java-{java.version}.jsa")
    except PackageNotFoundError:
        return None


def sharing() -> str:
    """What a JVM of Spark is told to start fast; nothing if nobody asked, or no classes are ready to be shared."""
    if not os.environ.get(ASKED):
        return ""
    file = (java := find_java()) and place(java)
    return f'"-XX:SharedArchiveFile={file}" {LIGHT_JVM}' if file and file.exists() else ""


def make(java: Java, file: Path) -> None:
    """Let Spark do a little of everything, and put the classes that it needed into a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        script, made = Path(folder, "work.py"), Path(folder, file.name)
        script.write_text(WORK)
        _submit(script, java, f'{LIGHT_JVM} "-XX:ArchiveClassesAtExit={made}"')
        made.replace(file)


def _submit(script: Path, java: Java, options: str) -> None:
    ours = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(home()), "SPARK_CONF_DIR": NOWHERE}
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    words = ["--conf", "spark.ui.enabled=false", "--driver-java-options", options, str(script)]
    done = subprocess.run(
        [home() / "bin" / "spark-submit", *words], env={**os.environ, **ours, **here}, capture_output=True, text=True
    )
    if done.returncode:
        raise TrainoffError(f"spark-submit ended with code {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Make the classes ready, if there are a Java and a Spark that can use them."""
    java = find_java()
    file = place(java) if java and not java.lacks else None
    if not java or not file:
        print("Spark's classes cannot be made ready: there is no Spark here, or no Java for it.")
    elif not file.exists():
        try:
            make(java, file)
        except (OSError, TrainoffError) as error:
            sys.exit(f"Spark's classes cannot be made ready: {error}")


if __name__ == "__main__":
    main()
