"""How closely one figure goes with another: straight lines through points, and through their logarithms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainoff.analysis.format import count, quality, settings_text
from trainoff.analysis.groups import SettingGroup, setting_of
from trainoff.records import Record

FEWEST = 3  # points through which a line says something
SIZES: dict[str, Callable[[Record], float | None]] = {  # what a node has, and the training time may go with
    "cores": lambda record: record.cores or None,
    "memory_gb": lambda record: record.memory_gb,
}
_OF_SIZE = ("cores", "memory_gb", "machine")  # what differs from size to size
TOLD = {"cores": "cores", "memory_gb": "memory"}


@dataclass(frozen=True)
class FittedLine:
    """The straight line through some points that leaves the least squares: `y = intercept + slope * x`.

    With `log` it runs through the logarithms: `y = exp(intercept) * x ** slope`. `r_squared` is the share of the
    variance of y, or of its logarithm, that the line explains.
    """

    n: int
    slope: float
    intercept: float
    r_squared: float
    log: bool = False

    def at(self, x: float) -> float:
        """What the line says of an x."""
        return math.exp(self.intercept) * x**self.slope if self.log else self.intercept + self.slope * x


@dataclass(frozen=True)
class Correlation:
    """How the training time of an engine goes with the size of its nodes, all else being equal."""

    engine: str
    workload: str
    mode: str
    workers: int
    against: str  # of SIZES
    linear: FittedLine
    log: FittedLine
    setting: str = ""  # what else sets it apart, in words

    @property
    def name(self) -> str:
        """Whose training time it is."""
        workers = f" ({self.mode}, {count(self.workers, 'worker')})" if self.workers > 1 else ""
        return f"{self.engine}{workers}{f' with {self.setting}' if self.setting else ''}"


def fit_line(x: Sequence[float], y: Sequence[float], log: bool = False) -> FittedLine | None:
    """The least-squares line; None for fewer than three points, for one x, and for a logarithm of what has none."""
    if len(x) != len(y):
        raise ValueError("a line needs a y for every x")
    if len(x) < FEWEST or (log and min(*x, *y) <= 0):
        return None
    if log:
        x, y = [math.log(value) for value in x], [math.log(value) for value in y]
    middle_x, middle_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    xx = math.fsum((a - middle_x) ** 2 for a in x)
    yy = math.fsum((b - middle_y) ** 2 for b in y)
    xy = math.fsum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    if not xx:
        return None
    slope = xy / xx
    return FittedLine(len(x), slope, middle_y - slope * middle_x, xy**2 / (xx * yy) if yy else 0.0, log)


def correlations(groups: Sequence[SettingGroup]) -> list[Correlation]:
    """For every engine that trained the same on nodes of several sizes: its training time against each size."""
    found = []
    for own in _families(groups):
        for against, size in SIZES.items():
            points = [(had, took) for one in own if (had := size(one.first)) and (took := one.median(_train))]
            x, y = [had for had, _ in points], [took for _, took in points]
            linear, log = fit_line(x, y), fit_line(x, y, log=True)
            if linear and log:
                first, setting = own[0].first, _apart(own[0])
                whose = (first.engine, first.workload, first.mode, first.workers)
                found.append(Correlation(*whose, against, linear, log, setting))
    return found


def correlation_lines(groups: Sequence[SettingGroup]) -> list[str]:
    """A sentence for every setting but for its size: how much of its training time cores explain, and memory."""
    together: dict[tuple[str, str, int], list[Correlation]] = {}
    for one in correlations(groups):
        together.setdefault((one.name, one.workload, one.linear.n), []).append(one)
    said = []
    for (name, workload, sizes), own in together.items():
        parts = ", ".join(
            f"{TOLD[one.against]} {one.linear.r_squared:.3f} ({one.log.r_squared:.3f} by logarithms)" for one in own
        )
        said.append(
            f"What explains the training time of {name} on {workload}, as R² over {sizes} sizes of nodes: {parts}."
        )
    return said


def _apart(group: SettingGroup) -> str:
    """What sets a group apart besides its size and workload, in words."""
    return settings_text({key: value for key, value in group.label.items() if key not in (*_OF_SIZE, "workload")})


def _train(record: Record) -> float | None:
    return record.train_s


def _families(groups: Sequence[SettingGroup]) -> list[list[SettingGroup]]:
    """Settings that ended well and differ in nothing but the size of their nodes, where there are several sizes."""
    found: dict[str, list[SettingGroup]] = {}
    for group in groups:
        if group.good:
            rest = {key: value for key, value in setting_of(group.first).items() if key not in _OF_SIZE}
            found.setdefault(json.dumps(rest, sort_keys=True, default=str), []).append(group)
    return [own for own in found.values() if len({group.first.cores for group in own}) >= FEWEST]


LEAST = 3  # sizes of a batch that make a comparison
MOST = 8  # comparisons; more than that nobody reads


def batch_lines(groups: Sequence[SettingGroup]) -> list[str]:
    """For every setting that was tried with several batch sizes, which was fastest and what each led to."""
    families: dict[str, list[SettingGroup]] = {}
    for group in groups:
        if group.good and "batch_size" in group.first.params and group.first.samples_seen is not None:
            families.setdefault(_family(group), []).append(group)
    compared = [own for own in families.values() if len({_batch(group) for group in own}) >= LEAST]
    return [_sentence(own) for own in compared] if len(compared) <= MOST else []


def _batch(group: SettingGroup) -> int:
    """The rows of a batch; there are no more than the training set has."""
    size, rows = int(group.first.params["batch_size"]), group.first.dataset.get("train_rows")
    return min(size, rows) if rows else size


def _family(group: SettingGroup) -> str:
    rest = {key: value for key, value in setting_of(group.first).items() if key != "batch_size"}
    return json.dumps(rest, sort_keys=True, default=str)


def _sentence(own: Sequence[SettingGroup]) -> str:
    ordered = sorted(own, key=_batch)
    first = ordered[0].first
    speeds = {_batch(group): group.median(lambda record: record.samples_per_s) or 0.0 for group in ordered}
    fastest = max(speeds, key=speeds.__getitem__)
    others = ", ".join(f"{batch:,}: {speed:,.0f}" for batch, speed in speeds.items() if batch != fastest)
    where = f"{first.engine} ({first.mode}, {count(first.workers, 'worker')}) on {first.workload}"
    return (
        f"{where}: batches of {fastest:,} were fastest, {speeds[fastest]:,.0f} samples/s ({others}); {_learnt(ordered)}"
    )


def _learnt(ordered: Sequence[SettingGroup]) -> str:
    """What came of the samples, batch by batch."""
    seen = {group.first.samples_seen for group in ordered}
    results = {_batch(group): group.median(lambda record: record.result) for group in ordered}
    metric = ordered[0].first.metric
    told = ", ".join(f"{quality(result)} with {batch:,}" for batch, result in results.items())
    if len(seen) == 1:
        return f"{metric} after the same {seen.pop():,} samples: {told}."
    return f"{metric} at the end, after unequal numbers of samples: {told}."
