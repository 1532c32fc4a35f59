"""Patience with processes that start side by side: many on few CPUs take longer than one."""

from __future__ import annotations

import os

EACH = 2  # so many on a CPU are no crowd


def cpus() -> list[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def crowded(seconds: float, processes: int) -> float:
    """How long to wait for so many processes, each of which should take at most so many seconds to be there."""
    return seconds * max(1.0, processes / (EACH * len(cpus())))
