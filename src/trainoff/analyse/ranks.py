"""The exact rank test: who was ahead, where some never arrived and there is no ratio to compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


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
