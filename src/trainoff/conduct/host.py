"""The host that a guard is on: its address, its CPUs, its Java."""

from __future__ import annotations

import math
import os
import platform
from typing import Any

import psutil

from trainoff.clusters.local import cpus
from trainoff.runner.machine import cpu_model


def interface(address: str) -> str | None:
    """The name of the interface that bears an address, which gloo wants to know."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def java_and_spark() -> dict[str, Any]:
    """Where this machine has Java and Spark, or what is wrong with them."""
    from trainoff.clusters.java import INSTALL, LEAST, find_java, home

    java = find_java()
    if java is None or java.lacks:
        what = f"another Java ({java.lacks})" if java else f"Java {LEAST} or later"
        return {"error": f"needs {what}; {INSTALL} there"}
    return {"java_home": str(java.home), "spark_home": str(home())}


def describe(address: str) -> str:
    """This machine in one line."""
    pinned, memory = len(cpus()), psutil.virtual_memory().total / 2**30
    return f"{address}, {pinned} of {psutil.cpu_count()} CPUs ({cpu_model()}), {memory:.1f} GiB, {platform.platform()}"


def pin(cores: float) -> None:
    """Keep this process and those that it starts to so many CPUs."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: max(1, math.ceil(cores))])
