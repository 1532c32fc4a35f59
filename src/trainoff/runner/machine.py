"""This machine: its hardware, what is installed, and its current speed (the control kernel)."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import time
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import trainoff
from trainoff.clusters.java import find_java
from trainoff.clusters.local import cpus
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]

NUMERIC = ("numpy", "scipy", "scikit-learn", "polars", "torch", "tensorflow", "tensorflow-cpu", "jax", "pyspark",
           "dask", "ray")  # fmt: skip


@cache
def environment() -> dict[str, Any]:
    """Return the record's `environment`: hardware, system, versions."""
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
    """Return the version of the Java that Spark would use; if none fits, of the first one found."""
    found = find_java()
    return found.version if found else None


def cgroup() -> str | None:
    """Return the version of control groups that is mounted: v1, v2 or None."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if (root / "memory").exists() or (root / "cpu").exists() else None


def gpu() -> str | None:
    """Return the name of the first NVIDIA GPU, or None."""
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    done = subprocess.run([command, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def ssh() -> str | None:
    """Return the version of ssh, or None if it is not installed."""
    if not (command := shutil.which("ssh")):
        return None
    return subprocess.run([command, "-V"], capture_output=True, text=True).stderr.strip().split(",")[0] or command


def _blas() -> str | None:
    """Return the name and version of numpy's BLAS library."""
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
    """Return the commit of the checkout that trainoff runs from, and whether files were changed; None if installed."""
    root = Path(trainoff.__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True).stdout.strip()

    sha = git("rev-parse", "HEAD")
    return {"sha": sha, "changed": bool(git("status", "--porcelain"))} if sha else None


def describe_line() -> str:
    """Return one line about the machine."""
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


DEFAULT_S = 1.0
FRESH_S = 10.0  # how long the speed after a trial is also valid for the next trial
SMALL, LARGE = 2**14, 2**22  # elements of an array that fits into a core's cache, and of one that does not
SMALL_PASSES = 400  # take about as long as one pass over the large array


class ControlKernel:
    """Measures the machine's speed before and after trials; one measurement may serve for two."""

    def __init__(self) -> None:
        self._seconds = control_seconds()
        self._speed: float | None = None
        self._cpu = -1
        self._until = -math.inf

    def before(self, cpu: int) -> float | None:
        """Return the machine's speed before a trial, in rounds per second; None if the kernel is disabled."""
        fresh = cpu == self._cpu and time.monotonic() < self._until
        return self._speed if fresh else self.after(cpu)

    def after(self, cpu: int) -> float | None:
        """Return the machine's current speed."""
        self._speed = speed(cpu, self._seconds) if self._seconds else None
        self._cpu = cpu
        self._until = time.monotonic() + FRESH_S
        return self._speed


def control_seconds() -> float:
    """Return how long the kernel runs: TRAINOFF_CONTROL_S, by default one second; 0 disables it."""
    value = os.environ.get("TRAINOFF_CONTROL_S", "")
    with suppress(ValueError):
        found = float(value or DEFAULT_S)
        if 0 <= found < math.inf:
            return found
    raise TrainoffError(f"TRAINOFF_CONTROL_S={value}: this is no number of seconds; the default is 1, 0 means none")


def speed(cpu: int, length: float) -> float:
    """Return rounds per second on one CPU in one thread; matrix products, for which numpy uses several, are avoided."""
    small, large = _array(SMALL), _array(LARGE)
    rounds, start = 0, time.perf_counter()
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        if before:
            with suppress(OSError):
                os.sched_setaffinity(0, {cpu})
        while rounds == 0 or time.perf_counter() - start < length:
            for _ in range(SMALL_PASSES):
                _work(small)
            _work(large)
            rounds += 1
    finally:
        if before:
            os.sched_setaffinity(0, before)
    return round(rounds / (time.perf_counter() - start), 3)


def _work(array: Array) -> None:
    """Do one pass over an array; its values stay the same, so that every pass is the same work."""
    import numpy

    numpy.multiply(array, -1.0, out=array)
    numpy.abs(array, out=array)


@cache
def _array(count: int) -> Array:
    import numpy

    return numpy.linspace(0.5, 1.5, count, dtype=numpy.float32)
