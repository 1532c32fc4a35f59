"""The interval of a median, from the order of the values alone: it holds whatever their distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
FEWEST = 6  # values from which the smallest and the largest enclose the median often enough


@dataclass(frozen=True)
class Interval:
    """The median of some values and what encloses it."""

    median: float
    low: float
    high: float
    level: float | None  # how often such an interval holds the true median, exactly; None: smallest and largest value
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The median with the narrowest pair of values that encloses the true one in at least 95 % of all cases.

    Fewer than six values cannot promise that; then it is the smallest and the largest, and no level. Infinite
    values are runs that never got there: they count as longer than all others.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("there is no interval of no values")
    rank = _rank(n)
    low, high = ordered[rank], ordered[n - 1 - rank]
    level = None if n < FEWEST else coverage(n, rank)
    return Interval(statistics.median(ordered), low, high, level, n)


def _rank(n: int) -> int:
    """How many values lie outside at either end."""
    rank = 0
    while coverage(n, rank + 1) >= LEVEL:
        rank += 1
    return rank


def coverage(n: int, rank: int) -> float:
    """How often `n` values without the `rank` outermost at either end enclose the median they were drawn around."""
    return 1 - 2 * sum(math.comb(n, below) for below in range(rank + 1)) / 2.0**n
