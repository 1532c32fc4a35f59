"""The interval of a median and the exact rank test, by the order of the values alone; Student's t from scipy."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
DEVIATIONS = 1.96  # standard deviations in the half width of an interval of 95 %
UNTIL_KNOWN = 0.05  # how far apart runs of one setting are assumed to lie before any was repeated
WEIGHT = 2  # how many runs an assumption counts as
FEWEST_FOR_INTERVAL = 6  # values whose smallest and largest enclose the median often enough


@dataclass(frozen=True)
class Interval:
    """The median of some values and two of the values that enclose it."""

    median: float
    low: float
    high: float
    level: float | None  # the exact probability that the true median lies inside; None: smallest and largest value
    n: int


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def pooled_squares(samples: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the sum of squared distances from the mean of each sample, and the degrees of freedom."""
    squares, freedom = 0.0, 0
    for sample in samples:
        if len(sample) > 1:
            mean = math.fsum(sample) / len(sample)
            squares += math.fsum((value - mean) ** 2 for value in sample)
            freedom += len(sample) - 1
    return squares, freedom


def interval(values: Sequence[float]) -> Interval:
    """Return the median with the narrowest pair of values that encloses the true one in at least 95 % of all cases.

    With fewer than six values there is no such pair; the interval is then from the smallest to the largest, without a
    level. Infinite values are runs that never reached the target: they count as longer than all others.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("there is no interval of no values")
    rank = 0
    while coverage(n, rank + 1) >= LEVEL:
        rank += 1
    level = None if n < FEWEST_FOR_INTERVAL else coverage(n, rank)
    return Interval(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank], level, n)


def coverage(n: int, rank: int) -> float:
    """Return the probability that `n` values without the `rank` outermost at either end enclose the true median."""
    return 1 - 2 * sum(math.comb(n, below) for below in range(rank + 1)) / 2.0**n


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the exact p-value of the rank test of Mann and Whitney (two-sided), ties included.

    Only the order counts: an infinite value, a run that never reached the target, is simply the last, and equal values
    share their rank. The exact test of scipy assumes that no values are equal.
    """
    ordered = sorted([*a, *b])
    ranks = [2 * ordered.index(value) + ordered.count(value) + 1 for value in (*a, *b)]  # twice the rank, ties shared
    rank_sum, expected = sum(ranks[: len(a)]), len(a) * (len(ranks) + 1)
    counts = [Counter({0: 1}), *(Counter[int]() for _ in a)]  # how many choices of so many ranks have each sum
    for rank in ranks:
        for chosen in range(len(a), 0, -1):
            for total, count in counts[chosen - 1].items():
                counts[chosen][total + rank] += count
    sums, distance = counts[-1], abs(rank_sum - expected)
    return sum(count for total, count in sums.items() if abs(total - expected) >= distance) / sum(sums.values())


def two_sided(t: float, freedom: int) -> float:
    """Return the two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


@cache
def quantile(level: float, freedom: int) -> float:
    """Return the t that encloses this share of Student's distribution, from -t to t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))
