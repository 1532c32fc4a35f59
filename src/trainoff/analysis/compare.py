"""Compare two settings: repetitions in pairs, the ratio with its interval, and the band in which settings tie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainoff.analysis.figures import TIME_TO_TARGET, Figure, time_to
from trainoff.analysis.format import count, p_value_text, percent, ratio_text
from trainoff.analysis.groups import SettingGroup, as_key, setting_of
from trainoff.analysis.statistics import DEVIATIONS, LEVEL, UNTIL_KNOWN, pooled_squares, quantile, rank_test, two_sided
from trainoff.records import Record

RANKING = 5  # pairs below which a result is only indicative
PAIRED_T, RANKS = "paired t on log ratios", "exact rank test"


@dataclass(frozen=True)
class Ratio:
    """The ratio that pairs of figures show: the first one's as a multiple of the other's."""

    ratio: float | None = None  # None: neither has a figure; infinite or 0: only one of them has
    low: float | None = None  # of the 95 % interval; of fewer than 5 pairs the smallest ratio; None without ratios
    high: float | None = None
    p: float | None = None  # None of fewer than 5 pairs
    test: str | None = None
    less: bool = False  # whether the first one's figures are the smaller ones


def measure_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of pairs of figures, with its interval and p-value."""
    if not pairs:
        return Ratio()
    enough = len(pairs) >= RANKING
    if not all(0 < min(pair) <= max(pair) < math.inf or pair == (0, 0) for pair in pairs):
        return _by_order(pairs, enough)
    logs = [math.log(first / second) if first != second else 0.0 for first, second in pairs]
    mean = math.fsum(logs) / len(logs)
    if not enough:
        return Ratio(math.exp(mean), math.exp(min(logs)), math.exp(max(logs)), less=mean < 0)
    freedom = len(logs) - 1
    error = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / freedom / len(logs))
    half = quantile(LEVEL, freedom) * error
    t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    interval = math.exp(mean - half), math.exp(mean + half)
    return Ratio(math.exp(mean), *interval, two_sided(t, freedom), PAIRED_T, mean < 0)


def _by_order(pairs: Sequence[tuple[float, float]], enough: bool) -> Ratio:
    """Compare by rank, without an interval, because some runs never reached the target."""
    a, b = zip(*pairs, strict=True)
    ahead = sum((x < y) - (x > y) for x in a for y in b)
    upper, lower = statistics.median(a), statistics.median(b)
    known = lower > 0 and not (math.isinf(upper) and math.isinf(lower))
    ratio = upper / lower if known else None
    return Ratio(ratio, p=rank_test(a, b) if enough else None, test=RANKS if enough else None, less=ahead > 0)


def verdict_of(found: Ratio, band: Band, higher_is_better: bool = False) -> str:
    """Return the verdict on the first setting: `tie` inside the band, else `faster` or `slower` if p is small."""
    if found.p is None:
        return "undecided"
    if found.low is not None and found.high is not None and band.holds(found.low, found.high):
        return "tie"
    if found.p < 1 - LEVEL:
        return "faster" if found.less != higher_is_better else "slower"
    return "undecided"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm, so that even one wrong verdict among them all is unlikely."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - place)))
        corrected[index] = largest
    return corrected


def adjusted(found: Sequence[Ratio], factor: float = 1.0) -> list[Ratio]:
    """Correct the p-values of ratios that are read together by Holm, and multiply them by `factor`."""
    corrected = iter(holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else replace(each, p=min(1.0, next(corrected) * factor)) for each in found]


def against_best(found: Sequence[Ratio]) -> list[Ratio]:
    """Correct the p-values of comparisons with the best of all.

    The best was chosen by the same runs, so that any two settings might have been compared: every pair counts.
    """
    return adjusted(found, factor=max(1.0, (sum(each.p is not None for each in found) + 1) / 2))


NARROWEST, WIDEST = 0.01, 0.10  # a smaller difference is never important; a noisy machine must not hide larger ones
REPEATABILITY = DEVIATIONS * math.sqrt(2)  # within which two runs differ in 95 % of all cases (ISO 5725)
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
        width = percent(round(self.width, 3))
        return f"{width}, from the spread of repetitions" if self.source == "repetitions" else f"{width}, the default"


DEFAULT = Band(UNTIL_KNOWN)


def band_of(groups: Iterable[SettingGroup], figure: Figure) -> Band:
    """Return how far apart two runs of one setting lie, from repetitions in one study on one machine; else 5 %."""
    samples: dict[tuple[int, str, object], list[float]] = {}
    for i, group in enumerate(groups):
        for record in group.records:
            if (value := figure.value(record)) is not None and 0 < value < math.inf:
                samples.setdefault((i, record.study, record.environment.get("host")), []).append(math.log(value))
    squares, freedom = pooled_squares(samples.values())
    if freedom < ENOUGH:
        return DEFAULT
    width = math.expm1(REPEATABILITY * math.sqrt(squares / freedom))
    return Band(min(WIDEST, max(NARROWEST, width)), "repetitions")


@dataclass(frozen=True)
class Match:
    """Two settings to be compared by a figure."""

    a: SettingGroup
    b: SettingGroup
    figure: Figure
    band: Band = DEFAULT
    names: tuple[str, str] | None = None  # instead of the names of the groups
    across: bool = False  # pair repetitions of different studies, too


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two settings; `verdict` is about the first."""

    a: SettingGroup
    b: SettingGroup
    figure: Figure
    band: Band
    names: tuple[str, str]
    ratio: float | None
    low: float | None
    high: float | None
    n: int  # pairs
    p: float | None  # after Holm if several were compared
    test: str | None
    verdict: str  # faster, slower, tie, undecided; for resources, faster means less
    reached: tuple[int, int]  # pairs in which each of them has a finite figure

    @property
    def indicative(self) -> bool:
        return self.n < RANKING

    @property
    def sentence(self) -> str:
        """The comparison in one sentence, with its uncertainty."""
        (a, b), figure = self.names, self.figure
        if not self.n:
            return f"{a} and {b} have no repetition in common, so nothing can be said of their {figure.label}."
        text = _ratio_sentence(self) if self.low is not None else _order_sentence(self)
        if self.indicative:
            return f"{text}; with fewer than {RANKING} pairs this is indicative."
        if self.verdict == "tie":
            spread = f"{ratio_text(self.ratio)} times ({_spread(self)})"
            return f"{a} and {b} tie in their {figure.label}: {spread} is inside the band of {self.band}."
        if self.verdict == "undecided":
            return f"{text}: undecided, with a band of {self.band}."
        if self.low is None:
            return f"{text}: {self.verdict} ({self.test}, p {p_value_text(self.p)})."
        ahead = self.verdict == "faster" and figure.better != figure.neutral
        return f"{_ratio_sentence(self, ahead)}."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison for JSON; infinite values are null, and `reached` tells them from missing ones."""
        return {
            **{"a": self.names[0], "b": self.names[1], "workload": self.a.first.workload},
            **{"figure": self.figure.name, "target": self.figure.target},
            "medians": [_finite(each.median(self.figure.value)) for each in (self.a, self.b)],
            **{name: _finite(getattr(self, name)) for name in ("ratio", "low", "high", "p")},
            **{name: getattr(self, name) for name in ("n", "test", "verdict", "indicative", "sentence")},
            **{"reached": list(self.reached), "band": asdict(self.band)},
        }


def pairs(match: Match) -> list[tuple[float, float]]:
    """Return the figures of both settings in every repetition that both have: those of the same seed."""

    def block(record: Record) -> tuple[object, ...]:
        return ("" if match.across else record.study), record.repetition, record.seed

    other = {block(record): match.figure.value(record) for record in match.b.records}
    both = [(match.figure.value(record), other.get(block(record))) for record in match.a.records]
    return [(first, second) for first, second in both if first is not None and second is not None]


def compare(a: SettingGroup, b: SettingGroup, figure: Figure, band: Band = DEFAULT) -> Comparison:
    """Compare setting `a` with setting `b` by a figure."""
    return compare_all([Match(a, b, figure, band)])[0]


def compare_all(
    matches: Sequence[Match], adjust: Callable[[Sequence[Ratio]], list[Ratio]] = adjusted
) -> list[Comparison]:
    """Run several comparisons that are read together, so that their chances of error add up."""
    values = [pairs(match) for match in matches]
    ratios = adjust([measure_ratio(each) for each in values])
    return [
        Comparison(
            match.a, match.b, match.figure, match.band, match.names or (match.a.name, match.b.name),
            found.ratio, found.low, found.high, len(both), found.p, found.test,
            verdict_of(found, match.band, match.figure.higher_is_better),
            (sum(math.isfinite(first) for first, _ in both), sum(math.isfinite(second) for _, second in both)),
        )
        for match, both, found in zip(matches, values, ratios, strict=True)
    ]  # fmt: skip


def comparisons(groups: Sequence[SettingGroup], target: float | None) -> list[Comparison]:
    """Compare every setting of a board with the winner by the time to a target; empty if no setting reached it."""
    finished = [group for group in groups if target is not None and group.time_to(target) is not None]
    if target is None or not finished:
        return []
    winner = min(finished, key=lambda group: group.time_to(target) or 0.0)
    figure = time_to(target, winner.first.metric)
    band = band_of(groups, figure)
    matches = [Match(group, winner, figure, band) for group in groups if group is not winner]
    return compare_all(matches, against_best)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio_sentence(found: Comparison, ahead: bool = False) -> str:
    """Return the ratio in words; with `ahead`, by how many times the first one is better, above 1."""
    a, b = found.names
    ratio, phrase = found.ratio or 0.0, found.figure.better if ahead else found.figure.neutral
    return f"{a} {phrase.format(ratio=ratio_text(1 / ratio if ahead else ratio), other=b)} ({_spread(found, ahead)})"


def _spread(found: Comparison, ahead: bool = False) -> str:
    low, high = found.low or 0.0, found.high or 0.0
    low, high = (1 / high, 1 / low) if ahead else (low, high)
    if found.indicative:
        return f"{ratio_text(low)} to {ratio_text(high)} in {found.n} pairs" if found.n > 1 else "one pair"
    return f"{ratio_text(low)} to {ratio_text(high)}, n = {found.n}"


def _order_sentence(found: Comparison) -> str:
    (a, b), figure = found.names, found.figure
    if figure.name == TIME_TO_TARGET:
        target = figure.label.removeprefix("time to ")
        return f"{a} reached {target} in {found.reached[0]} of {count(found.n, 'run')} and {b} in {found.reached[1]}"
    first, second = (figure.format(group.median(figure.value)) for group in (found.a, found.b))
    return f"{a} has a {figure.label} of {first} and {b} of {second}"


Pair = tuple[SettingGroup, SettingGroup]


def engine_pairs(groups: Sequence[SettingGroup], one: str, other: str) -> list[Pair]:
    """Pair every setting of one engine with those of another that have the same values of all keys that both have.

    Of several, those with the same number of workers are taken, and of these those in the same mode.
    """
    ours, theirs = ([group for group in groups if group.first.engine == name] for name in (one, other))
    pairs = []
    for a in ours:
        comparable = [b for b in theirs if _comparable(a, b)]
        same_workers = [b for b in comparable if b.first.workers == a.first.workers]
        same_mode = [b for b in same_workers if b.first.mode == a.first.mode]
        pairs += [(a, b) for b in same_mode or same_workers or comparable]
    return pairs


def _comparable(a: SettingGroup, b: SettingGroup) -> bool:
    free = {*a.first.settled, *b.first.settled}  # an engine that has no choice is compared all the same
    shared = [key for key in a.label if key in b.label and key not in free]
    return a.first.workload == b.first.workload and all(a.label[key] == b.label[key] for key in shared)


def folder_pairs(first: Sequence[SettingGroup], second: Sequence[SettingGroup]) -> list[Pair]:
    """Pair the settings that are in both folders, the one in the second folder with the one in the first."""
    before = {as_key(setting_of(group.first)): group for group in first}
    keys = [(group, as_key(setting_of(group.first))) for group in second]
    return [(group, before[key]) for group, key in keys if key in before]
