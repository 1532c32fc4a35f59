"""Find Spark's processes in a trial."""

from __future__ import annotations

from pathlib import Path

import psutil

from helpers.running import assert_nothing_listens_outside

VICTIMS = {
    "executor": "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "worker": "org.apache.spark.deploy.worker.Worker",
    "master": "org.apache.spark.deploy.master.Master",
    "driver": "org.apache.spark.deploy.SparkSubmit",
}
ATTACH = """workers = {workers}
optimizer = "sgd"
mode = "sync"
[cluster]
kind = "attach"
master = "{master}"
memory_gb = 2
[cluster.spark]
"spark.authenticate" = true
"spark.authenticate.secret" = "{secret}"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


def jvms(main: str, folder: Path) -> list[psutil.Process]:
    """Return the JVMs of the trial below a folder that run a class."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        argv, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if main in argv and variables.get("TRAINOFF_EVENTS", "").startswith(str(folder)):
            found.append(process)
    return found


def find_jvm(victim: str, folder: Path) -> psutil.Process:
    """Return a JVM of a kind; it must not listen outside of its trial's network."""
    (found, *_) = jvms(VICTIMS[victim], folder)
    assert_nothing_listens_outside(found)
    return found
