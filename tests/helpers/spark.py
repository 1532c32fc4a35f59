"""Spark's processes in a trial: who they are, and that they keep to themselves."""

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
    """The JVMs of a trial below a folder that run a class."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if main in words and variables.get("TRAINOFF_EVENTS", "").startswith(str(folder)):
            found.append(process)
    return found


def one_of(victim: str, folder: Path) -> psutil.Process:
    """A JVM of a kind, which listens to nobody outside of its trial."""
    (found, *_) = jvms(VICTIMS[victim], folder)
    assert_nothing_listens_outside(found)
    return found
