"""The interval of a median and the exact rank test, by the order of the values alone; Student's t by scipy."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

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


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """How often chance alone would sort two sets of values at least as clearly (Mann and Whitney), exactly.

    Only the order counts, so that an infinite value, a run that never got there, is simply the last; values that are
    equal share their rank, as all runs that never got there do.
    """
    ranks = _doubled_ranks([*a, *b])
    own, expected = sum(ranks[: len(a)]), len(a) * (len(ranks) + 1)
    sums = _sums(ranks, len(a))
    far = abs(own - expected)
    return sum(ways for total, ways in sums.items() if abs(total - expected) >= far) / sum(sums.values())


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, a whole number even where equal values share the mean of theirs."""
    ordered = sorted(values)
    return [2 * ordered.index(value) + ordered.count(value) + 1 for value in values]


def _sums(ranks: Sequence[int], size: int) -> Counter[int]:
    """In how many ways `size` of the ranks add up to what."""
    ways = [Counter({0: 1}), *(Counter[int]() for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] += count
    return ways[size]


def two_sided(t: float, freedom: int) -> float:
    """Return how often |t| would be at least this large by chance alone (Student's t)."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


@cache
def quantile(level: float, freedom: int) -> float:
    """Return the t that encloses this share of Student's distribution, from -t to t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))
