"""Classes that the JVMs of Spark share: `python -m trainoff.clusters.shared_classes` makes them ready, once.

A JVM that starts reads and checks thousands of classes in hundreds of jars, and a cluster of two workers is six JVMs.
With this file they map them into memory instead, and start in half the time. Without it, or where it does not fit the
Java or the jars any more, they read the jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from trainoff.clusters.java import Java, find_java
from trainoff.errors import TrainoffError

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
