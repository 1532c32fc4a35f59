"""Patience with processes that start side by side: many on few CPUs take longer than one."""

from __future__ import annotations

import os

EACH = 2  # so many on a CPU are no crowd


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crowded(seconds: float, processes: int) -> float:
    """How long to wait for so many processes, each of which should take at most so many seconds to be there."""
    return seconds * max(1.0, processes / (EACH * _cpus()))
