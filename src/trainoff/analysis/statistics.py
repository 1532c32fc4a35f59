"""The interval of a median, from the order of the values alone: it holds whatever their distribution."""

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


_TINY = 1e-300
_CLOSE = 1e-15
_MOST = 500  # terms; it takes some dozens


def two_sided(t: float, freedom: int) -> float:
    """How often |t| would be at least this large by chance alone."""
    if math.isinf(t):
        return 0.0
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@cache
def quantile(level: float, freedom: int) -> float:
    """The t that encloses this share of the distribution, from -t to t."""
    low, high = 0.0, 1.0
    while 1 - two_sided(high, freedom) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - two_sided(middle, freedom) < level else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # on this side it hardly converges, on the other it does
        return 1 - _beta(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logs) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    value, up, down = 1.0, 1.0, 0.0
    for step in range(1, _MOST):
        half, odd = divmod(step, 2)
        if odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        down = 1 / (1 + term * down or _TINY)
        up = 1 + term / up or _TINY
        value *= up * down
        if abs(up * down - 1) < _CLOSE:
            break
    return value
