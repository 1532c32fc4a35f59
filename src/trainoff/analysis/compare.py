"""Which of two settings is ahead, by how much and how sure: repetitions in pairs, their ratio, and the band of ties."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainoff.analysis.figures import TIME_TO_TARGET, Figure, time_to
from trainoff.analysis.format import count, p_value_text, percent, ratio_text
from trainoff.analysis.groups import SettingGroup, setting_of
from trainoff.analysis.statistics import quantile, rank_test, two_sided
from trainoff.records import Record

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


def measure_ratio(both: Sequence[tuple[float, float]]) -> Ratio:
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


def verdict_of(found: Ratio, band: Band, higher: bool = False) -> str:
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


UNTIL_KNOWN = 0.05
NARROWEST, WIDEST = 0.01, 0.10  # less decides nothing for anybody; more would hide what matters on a noisy machine
REPEATABILITY = 1.96 * math.sqrt(2)  # standard deviations within which two runs differ in 95 % of all cases (ISO 5725)
ENOUGH = 4  # degrees of freedom: one setting run five times, or four settings run twice


@dataclass(frozen=True)
class Band:
    """Ratios from 1/(1 + width) to 1 + width count as equal."""

    width: float
    source: str = "default"  # or "repetitions"

    def holds(self, low: float, high: float) -> bool:
        """Whether an interval of ratios lies inside."""
        return low >= 1 / (1 + self.width) and high <= 1 + self.width

    def __str__(self) -> str:
        wide = percent(round(self.width, 3))
        return f"{wide}, from the spread of repetitions" if self.source == "repetitions" else f"{wide}, the default"


DEFAULT = Band(UNTIL_KNOWN)


def band_of(groups: Iterable[SettingGroup], figure: Figure) -> Band:
    """How far two runs of one setting lie apart here, from repetitions in one study on one machine; else 5 %."""
    squares, freedom = 0.0, 0
    for logs in (_logs(runs, figure) for group in groups for runs in _together(group)):
        if len(logs) > 1:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
    if freedom < ENOUGH:
        return DEFAULT
    width = math.expm1(REPEATABILITY * math.sqrt(squares / freedom))
    return Band(min(WIDEST, max(NARROWEST, width)), "repetitions")


def _together(group: SettingGroup) -> Iterable[list[Record]]:
    """The runs of a setting that were made under the same conditions."""
    found: dict[tuple[str, object], list[Record]] = {}
    for record in group.records:
        found.setdefault((record.study, record.environment.get("host")), []).append(record)
    return found.values()


def _logs(runs: Iterable[Record], figure: Figure) -> list[float]:
    values = [value for record in runs if (value := figure.value(record)) is not None]
    return [math.log(value) for value in values if 0 < value < math.inf]


Adjust = Callable[[Sequence[Ratio]], list[Ratio]]


@dataclass(frozen=True)
class Match:
    """Two settings to be compared by a figure."""

    a: SettingGroup
    b: SettingGroup
    figure: Figure
    band: Band = DEFAULT
    names: tuple[str, str] | None = None  # where their own would not tell them apart
    across: bool = False  # pair repetitions of different studies, too


@dataclass(frozen=True)
class Comparison:
    """What the repetitions of two settings say of them; `verdict` is about the first."""

    a: SettingGroup
    b: SettingGroup
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


def compare(a: SettingGroup, b: SettingGroup, figure: Figure, band: Band = DEFAULT) -> Comparison:
    """Whether setting `a` is faster than `b` by a figure, slower, as fast, or whether that is open."""
    return compare_all([Match(a, b, figure, band)])[0]


def compare_all(matches: Sequence[Match], adjust: Adjust = adjusted) -> list[Comparison]:
    """Several comparisons that are read together, so that their chances of error add up."""
    values = [pairs(match) for match in matches]
    sure = adjust([measure_ratio(both) for both in values])
    return [_compared(match, both, each) for match, both, each in zip(matches, values, sure, strict=True)]


def _compared(match: Match, both: Sequence[tuple[float, float]], found: Ratio) -> Comparison:
    return Comparison(
        match.a, match.b, match.figure, match.band, match.names or (match.a.name, match.b.name),
        found.ratio, found.low, found.high, len(both), found.p, found.test,
        verdict_of(found, match.band, match.figure.higher_is_better),
        (sum(math.isfinite(first) for first, _ in both), sum(math.isfinite(second) for _, second in both)),
    )  # fmt: skip


def comparisons(groups: Sequence[SettingGroup], target: float | None) -> list[Comparison]:
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
    words, figure = found.figure.label, found.figure
    if not found.n:
        return f"{a} and {b} have no repetition in common, so nothing can be said of their {words}."
    told = _ratio_told(found) if found.low is not None else _order_told(found)
    if found.indicative:
        return f"{told}; with fewer than {RANKING} pairs this is indicative."
    if found.verdict == "tie":
        spread = f"{ratio_text(found.ratio)} times ({_spread(found)})"
        return f"{a} and {b} tie in their {words}: {spread} is inside the band of {found.band}."
    if found.verdict == "undecided":
        return f"{told}: undecided, with a band of {found.band}."
    if found.low is None:
        return f"{told}: {found.verdict} ({found.test}, p {p_value_text(found.p)})."
    ahead = found.verdict == "faster" and figure.better != figure.neutral
    return f"{_ratio_told(found, ahead)}."


def _ratio_told(found: Comparison, ahead: bool = False) -> str:
    """The ratio in words; where the first one is `ahead` as how many times, above 1."""
    a, b = found.names
    ratio, phrase = found.ratio or 0.0, found.figure.better if ahead else found.figure.neutral
    return f"{a} {phrase.format(ratio=ratio_text(1 / ratio if ahead else ratio), other=b)} ({_spread(found, ahead)})"


def _spread(found: Comparison, ahead: bool = False) -> str:
    low, high = found.low or 0.0, found.high or 0.0
    low, high = (1 / high, 1 / low) if ahead else (low, high)
    if found.indicative:
        return f"{ratio_text(low)} to {ratio_text(high)} in {found.n} pairs" if found.n > 1 else "one pair"
    return f"{ratio_text(low)} to {ratio_text(high)}, n = {found.n}"


def _order_told(found: Comparison) -> str:
    a, b = found.names
    if found.figure.name == TIME_TO_TARGET:
        goal = found.figure.label.removeprefix("time ")
        return f"{a} got {goal} in {found.reached[0]} of {count(found.n, 'run')} and {b} in {found.reached[1]}"
    medians = [found.figure.format(group.median(found.figure.value)) for group in (found.a, found.b)]
    return f"{a} has a {found.figure.label} of {medians[0]} and {b} of {medians[1]}"


Pair = tuple[SettingGroup, SettingGroup]


def engine_pairs(groups: Sequence[SettingGroup], one: str, other: str) -> list[Pair]:
    """Every setting of one engine with those of another that differ in nothing that both can be told.

    Where the other was tried with the same number of workers, or even in the same mode, only that one is meant.
    """
    ours, theirs = ([group for group in groups if group.first.engine == name] for name in (one, other))
    return [(a, b) for a in ours for b in _nearest(a, [b for b in theirs if _alike(a, b)])]


def _alike(a: SettingGroup, b: SettingGroup) -> bool:
    free = {*a.first.settled, *b.first.settled}  # an engine that has no choice is compared all the same
    shared = [key for key in a.label if key in b.label and key not in free]
    return a.first.workload == b.first.workload and all(a.label[key] == b.label[key] for key in shared)


def _nearest(a: SettingGroup, others: Sequence[SettingGroup]) -> Sequence[SettingGroup]:
    kinds: list[Callable[[SettingGroup], object]] = [
        lambda group: (group.first.workers, group.first.mode),
        lambda group: group.first.workers,
    ]
    for kind in kinds:
        if found := [b for b in others if kind(b) == kind(a)]:
            return found
    return others


def folder_pairs(first: Sequence[SettingGroup], second: Sequence[SettingGroup]) -> list[Pair]:
    """The settings that are in both folders, each as it is in the second and in the first."""
    before = {_key(group): group for group in first}
    return [(group, before[_key(group)]) for group in second if _key(group) in before]


def _key(group: SettingGroup) -> str:
    return json.dumps(setting_of(group.first), sort_keys=True, default=str)
