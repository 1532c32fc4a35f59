"""The control kernel: the same work before and after every trial, whose speed tells how fast the machine is."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]

USUAL_S = 1.0
FRESH_S = 10.0  # how long the speed after a trial may stand for that before the next
SMALL, LARGE = 2**14, 2**22  # numbers: what a core keeps close, and what it must fetch from memory
SMALL_ROUNDS = 400  # they take about as long as one round of the large ones


class Control:
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
