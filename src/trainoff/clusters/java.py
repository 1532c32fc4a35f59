"""The Java that Spark needs, and a file of shared classes with which its JVMs start faster."""

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

NEEDED_BY = ("spark",)  # cluster software
LEAST = 17  # for Spark 4
MODULE = "jdk.incubator.vector"  # required by Spark 4; small runtimes lack it
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
    """Return the first Java that Spark can use, else the first one, with what it lacks."""
    first = None
    for home in dict.fromkeys(home.resolve() for home in _homes()):
        if found := re.search(r'version "([^"]+)"', _run(home, "-version").stderr):
            java = Java(home, found[1], _lack(home, found[1]))
            if java.lacks is None:
                return java
            first = first or java
    return first


def _homes() -> Iterator[Path]:
    """Yield where Java may be installed, by JAVA_HOME, PATH and the usual places."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if command := shutil.which("java"):
        yield Path(command).resolve().parents[1]
    for pattern in ("/usr/lib/jvm/*", "/opt/java/*", "/opt/jdk*", "/Library/Java/JavaVirtualMachines/*/Contents/Home"):
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    yield from sorted(Path.home().glob(".sdkman/candidates/java/*"))


def _run(home: Path, option: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([home / "bin" / "java", option], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess([], 1, "", "")


def _lack(home: Path, version: str) -> str | None:
    major = re.match(r"(?:1\.)?(\d+)", version)
    if not major or int(major[1]) < LEAST:
        return f"Java {version} in {home} is too old for Spark, which needs Java {LEAST}"
    release = home / "release"
    listed = release.exists() and re.search(r'^MODULES="([^"]*)"', release.read_text(), re.MULTILINE)
    if MODULE in (listed[1].split() if listed else _run(home, "--list-modules").stdout):
        return None
    return f"Java {version} in {home} was built without the module {MODULE}, which Spark needs"


LIGHT_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # for JVMs that compute little
# Spark puts its configuration folder on the class path, and a folder there prevents sharing classes.
NOWHERE = "/nowhere"
SHARE = "TRAINOFF_SHARED_CLASSES"  # unset, Spark starts as for every user, and start-up times are comparable
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
"""  # uses the classes of executors, driver, master and worker in one JVM


def home() -> Path:
    """Return Spark's folder in the pyspark package."""
    found = find_spec("pyspark")
    if not found or not found.origin:
        raise TrainoffError("Spark is not installed; pip install 'trainoff[spark]'")
    return Path(found.origin).parent


def place(java: Java) -> Path | None:
    """Return the path of the shared classes for a Java and the installed Spark."""
    try:
        return Path(sys.prefix, "share", "trainoff", f"spark-{version('pyspark')}-java-{java.version}.jsa")
    except PackageNotFoundError:
        return None


def sharing() -> str:
    """Return JVM options that use the shared classes, or nothing if they are not requested or not made."""
    if not os.environ.get(SHARE):
        return ""
    file = (java := find_java()) and place(java)
    return f'"-XX:SharedArchiveFile={file}" {LIGHT_JVM}' if file and file.exists() else ""


def make(java: Java, file: Path) -> None:
    """Run a small Spark program, and write the classes that it loaded into a file."""
    spark = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(home()), "SPARK_CONF_DIR": NOWHERE}
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        script, made = Path(folder, "work.py"), Path(folder, file.name)
        script.write_text(WORK)
        options = f'{LIGHT_JVM} "-XX:ArchiveClassesAtExit={made}"'
        argv = [str(home() / "bin" / "spark-submit"), "--conf", "spark.ui.enabled=false"]
        argv += ["--driver-java-options", options, str(script)]
        done = subprocess.run(argv, env={**os.environ, **spark, **local}, capture_output=True, text=True)
        if done.returncode:
            raise TrainoffError(f"spark-submit ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        made.replace(file)


def main() -> None:
    """Make the shared classes, if Java and Spark are installed."""
    java = find_java()
    file = place(java) if java and not java.lacks else None
    if not java or not file:
        print("Spark's shared classes cannot be made: Spark is not installed, or no Java for it.")
    elif not file.exists():
        try:
            make(java, file)
        except (OSError, TrainoffError) as error:
            sys.exit(f"Spark's shared classes cannot be made: {error}")


if __name__ == "__main__":
    main()
