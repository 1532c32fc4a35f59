"""Which of two settings is ahead, by how much, and how sure that is: repetitions are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainoff.analyse.band import DEFAULT, Band, band_of
from trainoff.analyse.ratio import RANKING, Ratio, adjusted, against_best, judge, measure
from trainoff.analysis.figures import TIME_TO_TARGET, Figure, time_to
from trainoff.analysis.format import chance, count, times
from trainoff.analysis.groups import Group
from trainoff.records import Record

Adjust = Callable[[Sequence[Ratio]], list[Ratio]]


@dataclass(frozen=True)
class Match:
    """Two settings to be compared by a figure."""

    a: Group
    b: Group
    figure: Figure
    band: Band = DEFAULT
    names: tuple[str, str] | None = None  # where their own would not tell them apart
    across: bool = False  # pair repetitions of different studies, too


@dataclass(frozen=True)
class Comparison:
    """What the repetitions of two settings say of them; `verdict` is about the first."""

    a: Group
    b: Group
    figure: Figure
    band: Band
    names: tuple[str, str]
    ratio: float | None
    low: float | None
    high: float | None
    n: int  # pairs
    p: float | None  # after Holm, where several were compared
    test: str | None
    verdict: str  # faster, slower, tie, undecided; of what is used up faster means less
    reached: tuple[int, int]  # pairs in which each of them has a figure and got there

    @property
    def indicative(self) -> bool:
        """Too few pairs for a verdict."""
        return self.n < RANKING

    @property
    def sentence(self) -> str:
        """The comparison in one sentence, with its uncertainty."""
        return _sentence(self)

    def to_json(self) -> dict[str, Any]:
        """For programs; what is infinite is null, as JSON has no word for it, and `reached` tells."""
        plain = {name: _finite(getattr(self, name)) for name in ("ratio", "low", "high", "p")}
        told = {name: getattr(self, name) for name in ("n", "test", "verdict", "indicative", "sentence")}
        values = [_finite(each.median(self.figure.value)) for each in (self.a, self.b)]
        return {
            **{"a": self.names[0], "b": self.names[1], "workload": self.a.first.workload},
            **{"figure": self.figure.name, "target": self.figure.target, "medians": values},
            **plain,
            **told,
            **{"reached": list(self.reached), "band": asdict(self.band)},
        }


def pairs(match: Match) -> list[tuple[float, float]]:
    """The figures of both settings in every repetition that both have: same study, same seed, same hour."""

    def block(record: Record) -> tuple[object, ...]:
        return ("" if match.across else record.study), record.repetition, record.seed

    other = {block(record): match.figure.value(record) for record in match.b.records}
    both = [(match.figure.value(record), other.get(block(record))) for record in match.a.records]
    return [(first, second) for first, second in both if first is not None and second is not None]


def compare(a: Group, b: Group, figure: Figure, band: Band = DEFAULT) -> Comparison:
    """Whether setting `a` is faster than `b` by a figure, slower, as fast, or whether that is open."""
    return compare_all([Match(a, b, figure, band)])[0]


def compare_all(matches: Sequence[Match], adjust: Adjust = adjusted) -> list[Comparison]:
    """Several comparisons that are read together, so that their chances of error add up."""
    values = [pairs(match) for match in matches]
    sure = adjust([measure(both) for both in values])
    return [_compared(match, both, each) for match, both, each in zip(matches, values, sure, strict=True)]


def _compared(match: Match, both: Sequence[tuple[float, float]], found: Ratio) -> Comparison:
    return Comparison(
        match.a, match.b, match.figure, match.band, match.names or (match.a.name, match.b.name),
        found.ratio, found.low, found.high, len(both), found.p, found.test,
        judge(found, match.band, match.figure.higher),
        (sum(math.isfinite(first) for first, _ in both), sum(math.isfinite(second) for _, second in both)),
    )  # fmt: skip


def comparisons(groups: Sequence[Group], target: float | None) -> list[Comparison]:
    """Everybody on one board against its winner, by the time to a target; none where nobody got there."""
    there = [group for group in groups if target is not None and group.time_to(target) is not None]
    if target is None or not there:
        return []
    winner = min(there, key=lambda group: group.time_to(target) or 0.0)
    figure = time_to(target, winner.first.metric)
    band = band_of(groups, figure)
    matches = [Match(group, winner, figure, band) for group in groups if group is not winner]
    return compare_all(matches, against_best)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _sentence(found: Comparison) -> str:
    a, b = found.names
    words, figure = found.figure.words, found.figure
    if not found.n:
        return f"{a} and {b} have no repetition in common, so nothing can be said of their {words}."
    told = _ratio_told(found) if found.low is not None else _order_told(found)
    if found.indicative:
        return f"{told}; with fewer than {RANKING} pairs this is indicative."
    if found.verdict == "tie":
        spread = f"{times(found.ratio)} times ({_spread(found)})"
        return f"{a} and {b} tie in their {words}: {spread} is inside the band of {found.band}."
    if found.verdict == "undecided":
        return f"{told}: undecided, with a band of {found.band}."
    if found.low is None:
        return f"{told}: {found.verdict} ({found.test}, p {chance(found.p)})."
    ahead = found.verdict == "faster" and figure.better != figure.neutral
    return f"{_ratio_told(found, ahead)}."


def _ratio_told(found: Comparison, ahead: bool = False) -> str:
    """The ratio in words; where the first one is `ahead` as how many times, above 1."""
    a, b = found.names
    ratio, phrase = found.ratio or 0.0, found.figure.better if ahead else found.figure.neutral
    return f"{a} {phrase.format(ratio=times(1 / ratio if ahead else ratio), other=b)} ({_spread(found, ahead)})"


def _spread(found: Comparison, ahead: bool = False) -> str:
    low, high = found.low or 0.0, found.high or 0.0
    low, high = (1 / high, 1 / low) if ahead else (low, high)
    if found.indicative:
        return f"{times(low)} to {times(high)} in {found.n} pairs" if found.n > 1 else "one pair"
    return f"{times(low)} to {times(high)}, n = {found.n}"


def _order_told(found: Comparison) -> str:
    a, b = found.names
    if found.figure.name == TIME_TO_TARGET:
        goal = found.figure.words.removeprefix("time ")
        return f"{a} got {goal} in {found.reached[0]} of {count(found.n, 'run')} and {b} in {found.reached[1]}"
    medians = [found.figure.told(group.median(found.figure.value)) for group in (found.a, found.b)]
    return f"{a} has a {found.figure.words} of {medians[0]} and {b} of {medians[1]}"
