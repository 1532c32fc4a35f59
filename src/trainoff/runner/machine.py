"""Facts about this machine: what it is, what is installed, and how quiet it is."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import trainoff
from trainoff.clusters.java import INSTALL, find_java
from trainoff.clusters.local import cpus
from trainoff.clusters.ssh.client import INSTALL as BRING_SSH

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
