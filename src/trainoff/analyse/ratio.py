"""What pairs of figures say: their ratio, how sure it is, and the verdict that follows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainoff.analyse.band import Band
from trainoff.analyse.ranks import rank_test
from trainoff.analyse.student import quantile, two_sided

RANKING = 5  # pairs below which a result is only indicative
LEVEL = 0.95
PAIRED_T, RANKS = "paired t on log ratios", "exact rank test"


@dataclass(frozen=True)
class Ratio:
    """Figures of pairs put into a ratio: the first one's as a multiple of the other's."""

    ratio: float | None = None  # None: neither has a figure; infinite or 0: only one of them has
    low: float | None = None  # of the 95 % interval; of fewer than 5 pairs the smallest ratio; None without ratios
    high: float | None = None
    p: float | None = None  # how often chance alone would show as much; None of fewer than 5 pairs
    test: str | None = None
    less: bool = False  # whether the first one's figures are the smaller ones


def measure(both: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio that pairs of figures show, with its interval and how often chance alone would show as much."""
    if not both:
        return Ratio()
    enough = len(both) >= RANKING
    if not all(0 < min(pair) <= max(pair) < math.inf or pair == (0, 0) for pair in both):
        return _by_order(both, enough)
    logs = [math.log(first / second) if first != second else 0.0 for first, second in both]
    mean = math.fsum(logs) / len(logs)
    if not enough:
        return Ratio(math.exp(mean), math.exp(min(logs)), math.exp(max(logs)), less=mean < 0)
    freedom = len(logs) - 1
    error = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / freedom / len(logs))
    half = quantile(LEVEL, freedom) * error
    t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    interval = math.exp(mean - half), math.exp(mean + half)
    return Ratio(math.exp(mean), *interval, two_sided(t, freedom), PAIRED_T, mean < 0)


def _by_order(both: Sequence[tuple[float, float]], enough: bool) -> Ratio:
    """Where some never got there a ratio has no interval; what counts is who was ahead of whom."""
    a, b = zip(*both, strict=True)
    ahead = sum((x < y) - (x > y) for x in a for y in b)
    upper, lower = statistics.median(a), statistics.median(b)
    known = lower > 0 and not (math.isinf(upper) and math.isinf(lower))
    ratio = upper / lower if known else None
    return Ratio(ratio, p=rank_test(a, b) if enough else None, test=RANKS if enough else None, less=ahead > 0)


def judge(found: Ratio, band: Band, higher: bool = False) -> str:
    """The verdict on the first one: a tie inside the band, else ahead or behind where chance is unlikely."""
    if found.p is None:
        return "undecided"
    if found.low is not None and found.high is not None and band.holds(found.low, found.high):
        return "tie"
    if found.p < 1 - LEVEL:
        return "faster" if found.less != higher else "slower"
    return "undecided"


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of error of several verdicts, raised so that even one wrong verdict among them all is unlikely."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    raised, most = [0.0] * len(chances), 0.0
    for place, index in enumerate(order):
        most = max(most, min(1.0, chances[index] * (len(chances) - place)))
        raised[index] = most
    return raised


def adjusted(found: Sequence[Ratio], chosen: float = 1.0) -> list[Ratio]:
    """Ratios that are read together, their chances of error raised by Holm, and by `chosen` on top of it."""
    raised = iter(holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else replace(each, p=min(1.0, next(raised) * chosen)) for each in found]


def against_best(found: Sequence[Ratio]) -> list[Ratio]:
    """The same where all are compared with the best of them.

    The best was chosen by the same runs, so that any two might have been compared: every pair counts.
    """
    return adjusted(found, chosen=max(1.0, (sum(each.p is not None for each in found) + 1) / 2))
