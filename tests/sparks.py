"""Spark's processes in a trial: who they are, and that they keep to themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

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


def training(folder: Path) -> bool:
    """Whether a trial below a folder has made its first twenty steps."""
    return any(folder.glob("out/tiny/.staging/*/snapshot-0002.f32"))


def assert_nothing_listens_outside(process: psutil.Process) -> None:
    """A trial's processes live in another network than this one, and listen only on its loopback."""
    assert Path(f"/proc/{process.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    listed = subprocess.run(
        ["nsenter", "-t", str(process.pid), "-n", "ip", "-o", "link"], capture_output=True, text=True, check=True
    )
    assert [line.split(":")[1].strip() for line in listed.stdout.splitlines()] == ["lo"]
