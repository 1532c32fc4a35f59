"""How the training time depends on node size and batch size: least-squares lines, and sentences about batches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainoff.analysis.format import count, quality, settings_text
from trainoff.analysis.groups import SettingGroup, as_key, setting_of
from trainoff.records import Record

FEWEST_SIZES = 3  # sizes of a node, or of a batch, that make a comparison
SIZES: dict[str, Callable[[Record], float | None]] = {  # what a node has that the training time may depend on
    "cores": lambda record: record.cores or None,
    "memory_gb": lambda record: record.memory_gb,
}
_SIZE_KEYS = ("cores", "memory_gb", "machine")  # keys that differ from size to size
_SIZE_NAMES = {"cores": "cores", "memory_gb": "memory"}


@dataclass(frozen=True)
class FittedLine:
    """The least-squares line through some points: `y = intercept + slope * x`.

    With `log` it runs through the logarithms: `y = exp(intercept) * x ** slope`. `r_squared` is the share of the
    variance of y, or of its logarithm, that the line explains.
    """

    n: int
    slope: float
    intercept: float
    r_squared: float
    log: bool = False

    def at(self, x: float) -> float:
        """Return the y of the line at an x."""
        return math.exp(self.intercept) * x**self.slope if self.log else self.intercept + self.slope * x


@dataclass(frozen=True)
class Correlation:
    """How the training time of an engine depends on the size of its nodes, all else being equal."""

    engine: str
    workload: str
    mode: str
    workers: int
    against: str  # of SIZES
    linear: FittedLine
    log: FittedLine
    setting: str = ""  # what else distinguishes it

    @property
    def name(self) -> str:
        workers = f" ({self.mode}, {count(self.workers, 'worker')})" if self.workers > 1 else ""
        return f"{self.engine}{workers}{f' with {self.setting}' if self.setting else ''}"


def fit_line(x: Sequence[float], y: Sequence[float], log: bool = False) -> FittedLine | None:
    """Fit a line; None for fewer than three points, equal x, or logarithms of values that are not positive."""
    if len(x) != len(y):
        raise ValueError("a line needs a y for every x")
    if len(x) < FEWEST_SIZES or (log and min(*x, *y) <= 0):
        return None
    if log:
        x, y = [math.log(value) for value in x], [math.log(value) for value in y]
    if len(set(x)) == 1:
        return None
    slope, intercept = statistics.linear_regression(x, y)
    r_squared = statistics.correlation(x, y) ** 2 if len(set(y)) > 1 else 0.0
    return FittedLine(len(x), slope, intercept, r_squared, log)


def correlations(groups: Sequence[SettingGroup]) -> list[Correlation]:
    """Correlate the training time with each size of a node, for engines that ran the same on nodes of several sizes."""
    found = []
    for members in _families([group for group in groups if group.good], _SIZE_KEYS):
        if len({group.first.cores for group in members}) < FEWEST_SIZES:
            continue
        first = members[0].first
        label = {key: value for key, value in members[0].label.items() if key not in (*_SIZE_KEYS, "workload")}
        times = [(group.first, group.median(lambda record: record.train_s)) for group in members]
        for against, size in SIZES.items():
            points = [(had, time) for record, time in times if (had := size(record)) and time]
            x, y = [had for had, _ in points], [time for _, time in points]
            linear, log = fit_line(x, y), fit_line(x, y, log=True)
            if linear and log:
                engine = (first.engine, first.workload, first.mode, first.workers)
                found.append(Correlation(*engine, against, linear, log, settings_text(label)))
    return found


def correlation_lines(groups: Sequence[SettingGroup]) -> list[str]:
    """Return a sentence for each engine and setting: how much of the training time cores explain, and memory."""
    by_engine: dict[tuple[str, str, int], list[Correlation]] = {}
    for each in correlations(groups):
        by_engine.setdefault((each.name, each.workload, each.linear.n), []).append(each)
    sentences = []
    for (name, workload, sizes), found in by_engine.items():
        parts = ", ".join(
            f"{_SIZE_NAMES[each.against]} {each.linear.r_squared:.3f} ({each.log.r_squared:.3f} by logarithms)"
            for each in found
        )
        sentences.append(
            f"What explains the training time of {name} on {workload}, as R² over {sizes} sizes of nodes: {parts}."
        )
    return sentences


def _families(groups: Sequence[SettingGroup], keys: Sequence[str]) -> list[list[SettingGroup]]:
    """Return the settings that differ in nothing but these keys."""
    found: dict[str, list[SettingGroup]] = {}
    for group in groups:
        rest = {key: value for key, value in setting_of(group.first).items() if key not in keys}
        found.setdefault(as_key(rest), []).append(group)
    return list(found.values())


MOST_SENTENCES = 8  # if there are more comparisons of batches, none is printed


def batch_lines(groups: Sequence[SettingGroup]) -> list[str]:
    """Return for every setting that was run with several batch sizes which was fastest, and the result of each."""
    with_batches = [
        group
        for group in groups
        if group.good and "batch_size" in group.first.params and group.first.samples_seen is not None
    ]
    families = _families(with_batches, ("batch_size",))
    compared = [members for members in families if len({_batch(group) for group in members}) >= FEWEST_SIZES]
    return [_batch_sentence(members) for members in compared] if len(compared) <= MOST_SENTENCES else []


def _batch(group: SettingGroup) -> int:
    """Return the rows of a batch, at most those of the training set."""
    size, rows = int(group.first.params["batch_size"]), group.first.dataset.get("train_rows")
    return min(size, rows) if rows else size


def _batch_sentence(members: Sequence[SettingGroup]) -> str:
    ordered = sorted(members, key=_batch)
    first = ordered[0].first
    speeds = {_batch(group): group.median(lambda record: record.samples_per_s) or 0.0 for group in ordered}
    fastest = max(speeds, key=speeds.__getitem__)
    others = ", ".join(f"{batch:,}: {speed:,.0f}" for batch, speed in speeds.items() if batch != fastest)
    results = ", ".join(
        f"{quality(result)} with {batch:,}"
        for batch, result in {_batch(group): group.median(lambda record: record.result) for group in ordered}.items()
    )
    samples = {group.first.samples_seen for group in ordered}
    after = f"after the same {samples.pop():,}" if len(samples) == 1 else "at the end, after unequal numbers of"
    return (
        f"{first.engine} ({first.mode}, {count(first.workers, 'worker')}) on {first.workload}: "
        f"batches of {fastest:,} were fastest, {speeds[fastest]:,.0f} samples/s ({others}); "
        f"{first.metric} {after} samples: {results}."
    )
