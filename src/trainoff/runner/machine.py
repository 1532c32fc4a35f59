"""This machine: what it is, what is installed, and how fast it is now (the control kernel)."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import trainoff
from trainoff.clusters.java import INSTALL, find_java
from trainoff.clusters.local import cpus
from trainoff.clusters.ssh.client import INSTALL as BRING_SSH
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]


INSTALL_JAVA, INSTALL_SSH = INSTALL, BRING_SSH

NUMERIC = (
    "numpy",
    "scipy",
    "scikit-learn",
    "polars",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "pyspark",
    "dask",
    "ray",
)


@cache
def environment() -> dict[str, Any]:
    """What the record needs to be understood elsewhere: hardware, system, versions."""
    return {
        "cpu": cpu_model(),
        "cpus": len(cpus()),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java(),
        "cgroup": cgroup(),
        "swap_bytes": psutil.swap_memory().total,
        "host": platform.node(),
        "trainoff": trainoff.__version__,
        "commit": _commit(),
        "blas": _blas(),
        "packages": {name: version for name in NUMERIC if (version := _version(name))},
    }


def java() -> str | None:
    """The version of the Java that Spark would use here, or of the first there is."""
    found = find_java()
    return found.version if found else None


def cgroup() -> str | None:
    """Which version of control groups the machine mounts: v1, v2 or none."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if (root / "memory").exists() or (root / "cpu").exists() else None


def gpu() -> str | None:
    """The name of the first NVIDIA GPU, if there is one."""
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    said = subprocess.run([command, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return said.stdout.strip().splitlines()[0] if said.returncode == 0 and said.stdout.strip() else None


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def ssh() -> str | None:
    """The version of the ssh by which hosts are reached, or None if there is none."""
    if not (command := shutil.which("ssh")):
        return None
    return subprocess.run([command, "-V"], capture_output=True, text=True).stderr.strip().split(",")[0] or command


def _blas() -> str | None:
    """The library that numpy multiplies matrices with."""
    import numpy

    built = numpy.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"] if isinstance(built, dict) else {}
    return f"{blas.get('name')} {blas.get('version')}" if blas else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> dict[str, Any] | None:
    """The commit of the checkout that trainoff runs from, and whether it was changed since; None elsewhere."""
    root = Path(trainoff.__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True).stdout.strip()

    return (
        {"sha": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
        if git("rev-parse", "HEAD")
        else None
    )


def describe_line() -> str:
    """The machine in one line."""
    facts = environment()
    from trainoff.clusters import namespaces

    parts = [
        f"{facts['cpus']} cores, {facts['memory_bytes'] / 2**30:.0f} GiB",
        f"Java {facts['java'].split('.')[0]}" if facts["java"] else "no Java",
        f"namespaces {'no' if namespaces.why_not() else 'yes'}",
        f"cgroups {facts['cgroup'] or 'no'}",
        gpu() or "no GPU",
    ]
    return " · ".join(parts)


USUAL_S = 1.0
FRESH_S = 10.0  # how long the speed after a trial may stand for that before the next
SMALL, LARGE = 2**14, 2**22  # numbers: what a core keeps close, and what it must fetch from memory
SMALL_ROUNDS = 400  # they take about as long as one round of the large ones


class ControlKernel:
    """Runs the kernel around trials; what was measured after one serves before the next while it is fresh."""

    def __init__(self) -> None:
        self._seconds = seconds()
        self._speed: float | None = None
        self._cpu = -1
        self._until = -math.inf

    def before(self, cpu: int) -> float | None:
        """The speed of the machine before a trial, in rounds per second; None if the kernel is left out."""
        fresh = cpu == self._cpu and time.monotonic() < self._until
        return self._speed if fresh else self.after(cpu)

    def after(self, cpu: int) -> float | None:
        """The speed of the machine now."""
        self._speed = speed(cpu, self._seconds) if self._seconds else None
        self._cpu = cpu
        self._until = time.monotonic() + FRESH_S
        return self._speed


def seconds() -> float:
    """How long the kernel runs: TRAINOFF_CONTROL_S, a second by default, 0 for not at all."""
    said = os.environ.get("TRAINOFF_CONTROL_S", "")
    with suppress(ValueError):
        found = float(said or USUAL_S)
        if 0 <= found < math.inf:
            return found
    raise TrainoffError(f"TRAINOFF_CONTROL_S={said}: this is no length in seconds; 1 is usual, 0 leaves the kernel out")


def speed(cpu: int, length: float) -> float:
    """Rounds per second on one CPU, in this thread alone: no product of matrices, for which numpy may take more."""
    near, far = _numbers(SMALL), _numbers(LARGE)
    rounds, start = 0, time.perf_counter()
    with _on(cpu):
        while rounds == 0 or time.perf_counter() - start < length:
            for _ in range(SMALL_ROUNDS):
                _work(near)
            _work(far)
            rounds += 1
    return round(rounds / (time.perf_counter() - start), 3)


def _work(numbers: Array) -> None:
    """One round; the numbers stay what they are, so that every round is the same work."""
    import numpy

    numpy.multiply(numbers, -1.0, out=numbers)
    numpy.abs(numbers, out=numbers)


@cache
def _numbers(count: int) -> Array:
    import numpy

    return numpy.linspace(0.5, 1.5, count, dtype=numpy.float32)


@contextmanager
def _on(cpu: int) -> Iterator[None]:
    """Stay on one CPU, where the system lets one."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)
