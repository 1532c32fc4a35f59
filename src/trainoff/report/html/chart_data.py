"""The rows behind each chart: figures of groups and runs under the names that the charts know."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.analysis import COSTS, SettingGroup, fronts
from trainoff.analysis.format import count, quality, seconds, size
from trainoff.errors import TrainoffError
from trainoff.records import Record, series_of
from trainoff.report.html.style import PHASES

if TYPE_CHECKING:
    import numpy as np
    import polars


Row = dict[str, Any]
MOST_RUNS = 300  # with more of them, a line is the median of a setting's runs
MOST_POINTS = 12_000
LEAST_ERROR = 1e-4
FEWEST, MOST = 8, 60  # points of one line
COLUMNS = {"seconds": "train_s", "core-seconds": "cpu_s", "memory": "memory", "bytes": "bytes", "money": "usd"}
SHOWN = 60  # settings whose resources over time travel with the page


@dataclass(frozen=True)
class ChartContext:
    """The settings of one workload that are drawn, the best first, and where their records lie."""

    groups: Sequence[SettingGroup]
    cache: SeriesCache

    @property
    def runs(self) -> list[tuple[SettingGroup, Record]]:
        return [(group, record) for group in self.groups for record in group.records]

    def best(self, most: int) -> ChartContext:
        """Only so many of the best settings."""
        return ChartContext(self.groups[:most], self.cache)

    @cached_property
    def priced(self) -> bool:
        """Whether every trial has a price; money is not drawn for some and left out for others."""
        return all(record.usd_per_hour is not None for _, record in self.runs)

    @property
    def alike(self) -> bool:
        """Whether engine, mode and workers are the same for all, so that only the rest tells settings apart."""
        return len({(group.first.engine, group.first.mode, group.first.workers) for group in self.groups}) == 1

    def name(self, group: SettingGroup) -> str:
        """What a setting is called in the charts."""
        return group.setting or group.name if self.alike else group.name

    def names(self, group: SettingGroup) -> Row:
        """What every chart may ask of a setting."""
        first = group.first
        return {"name": self.name(group), "engine": first.engine, "mode": first.mode, "workers": first.workers}

    def money(self, record: Record) -> float | None:
        """What a trial's training cost."""
        return self.usd(record, record.train_s)

    def usd(self, record: Record, spent_s: float | None) -> float | None:
        """What some seconds of a trial's nodes cost."""
        return short(record.usd(spent_s)) if self.priced else None


def graded(row: Row) -> Row:
    """With the error beside the quality, for an axis that spreads accuracies near 1."""
    y = row["y"]
    return {**row, "error": None if y is None else short(max(1 - y, LEAST_ERROR))}


def curve_rows(context: ChartContext) -> list[Row]:
    """A line per run; with very many runs, a line per setting."""
    runs = context.runs
    if len(runs) > MOST_RUNS:
        return [row for group in context.groups for row in _median_line(context, group)]
    most = max(FEWEST, min(MOST, MOST_POINTS // max(1, len(runs))))
    return [row for group, record in runs for row in _line(context, group, record, most)]


def _line(context: ChartContext, group: SettingGroup, record: Record, most: int) -> Iterator[Row]:
    points = curve(record, context.cache, most)
    for at, point in enumerate(points):
        yield {
            **context.names(group),
            "trial": f"{record.trial_id}.{record.attempt}",
            "seed": record.seed,
            "status": record.status,
            **graded(point),
            "usd": context.usd(record, point["train_s"]),
            "last": at == len(points) - 1,
        }


def _median_line(context: ChartContext, group: SettingGroup) -> Iterator[Row]:
    """The runs of a setting look at the same samples: what the median run had come to at each."""
    lines = [list(_line(context, group, record, FEWEST)) for record in group.good]
    looks: dict[float, list[Row]] = {}
    for row in (row for line in lines for row in line):
        looks.setdefault(row["samples"], []).append(row)
    shared = [rows for _, rows in sorted(looks.items()) if 2 * len(rows) > len(lines)]
    for at, rows in enumerate(shared):
        middle = {key: _median(rows, key) for key in ("train_s", "core_s", "bytes", "usd", "y", "error")}
        yield {**rows[0], **middle, "trial": group.name, "seed": "median", "last": at == len(shared) - 1}


def above(rows: Sequence[Row], low: float | None) -> list[Row]:
    """The points of curves from a mark on: what comes before is hardly learning."""
    return [row for row in rows if low is None or (row["y"] or 0) >= low]


def _median(rows: Sequence[Row], key: str) -> float | None:
    found = [row[key] for row in rows if row.get(key) is not None]
    return short(statistics.median(found)) if found else None


def run_rows(context: ChartContext) -> list[Row]:
    """Every run's time to every target; one that never came there stands where it stopped."""
    return [row for group, record in context.runs for row in _times(context, group, record)]


def _times(context: ChartContext, group: SettingGroup, record: Record) -> Iterator[Row]:
    for target in record.targets:
        reached = record.time_to_target.get(str(target)) if record.status == "ok" else None
        ended = reached if reached is not None else record.train_s
        if ended and record.status != "wrong-result":
            short_of = "never got there" if record.status == "ok" else record.status
            yield {
                **context.names(group),
                "target": target,
                "seed": record.seed,
                "s": short(ended),
                "reached": reached is not None,
                "outcome": "got there" if reached is not None else short_of,
            }


def median_rows(context: ChartContext) -> list[Row]:
    """The median time of every setting to every target that it reaches, with its interval."""
    rows = []
    for group in context.groups:
        for target in group.first.targets:
            found = group.spread(target)
            if found and math.isfinite(found.median):
                high = found.high if math.isfinite(found.high) else _longest(group, found.median)
                told = {"median": short(found.median), "low": short(found.low), "high": short(high), "runs": found.n}
                rows.append({**context.names(group), "target": target, **told})
    return rows


def _longest(group: SettingGroup, least: float) -> float:
    """As far as any run of a setting went: where its interval is drawn to that has no end."""
    return max([least, *(record.train_s or 0.0 for record in group.records)])


def phase_rows(context: ChartContext) -> list[Row]:
    """The median seconds of every setting in every phase."""
    places = {name: place for place, name in enumerate(PHASES)}
    return [
        {**context.names(group), "phase": phase, "place": places.get(phase, 99), "seconds": short(spent)}
        for group in context.groups
        for phase, spent in group.phases_s().items()
    ]


def resource_rows(context: ChartContext) -> list[Row]:
    """Resources over time of the best settings, of one run each."""
    most = max(20, min(120, MOST_POINTS // (4 * max(1, len(context.groups)))))
    rows = []
    for group in context.groups[:SHOWN]:
        record = (group.good or group.records)[0]
        own = {"name": context.name(group), "engine": record.engine}
        rows += [{**own, **row} for row in resources(record, context.cache, most)]
    return rows


def used_rows(over_time: Sequence[Row]) -> list[Row]:
    """What every role of every setting used at most, and half of the time at least."""
    roles: dict[tuple[str, str], list[Row]] = {}
    for row in over_time:
        roles.setdefault((row["name"], row["role"]), []).append(row)
    return [
        {
            **{key: own[0][key] for key in ("name", "engine", "role")},
            **{key: _median(own, key) for key in ("cores", "memory", "sent")},
            **{f"most_{key}": _most(own, key) for key in ("cores", "memory", "sent")},
        }
        for own in roles.values()
    ]


def _most(rows: Sequence[Row], key: str) -> float | None:
    return max((row[key] for row in rows if row.get(key) is not None), default=None)


def families(context: ChartContext) -> dict[str, list[SettingGroup]]:
    """Settings that differ in nothing but the workers, where several numbers of them were tried."""
    found: dict[str, list[SettingGroup]] = {}
    for group in context.groups:
        if group.good:
            found.setdefault(_family(group), []).append(group)
    return {name: own for name, own in found.items() if len({group.first.workers for group in own}) > 1}


def scaling_rows(context: ChartContext, target: float | None) -> list[Row]:
    """Their runs that ended well."""
    return [
        {
            **context.names(group),
            "family": family,
            "seed": record.seed,
            "speed": short(record.samples_per_s),
            "time": short(record.time_to_target.get(str(target))) if target is not None else None,
            "train_s": short(record.train_s),
        }
        for family, own in families(context).items()
        for group in own
        for record in group.good
    ]


def scaled_rows(context: ChartContext, target: float | None) -> list[Row]:
    """Their medians; a time to the target only where at least half of all runs got there."""
    return [
        {
            **context.names(group),
            "family": family,
            "speed": short(group.median(lambda record: record.samples_per_s)),
            "time": short(group.time_to(target)) if target is not None else None,
            "train_s": short(group.median(lambda record: record.train_s)),
        }
        for family, own in families(context).items()
        for group in sorted(own, key=lambda group: group.first.workers)
    ]


def _family(group: SettingGroup) -> str:
    """A setting but for its workers."""
    first = group.first
    rest = [str(value) for key, value in group.label.items() if key not in ("workers", "cores", "memory_gb")]
    return " · ".join([first.engine, first.mode, *rest])


def pareto_rows(context: ChartContext) -> list[Row]:
    """A point per setting that ended well: its quality, what it took of each kind, and whether anything beats it."""
    rows: dict[int, Row] = {}
    for front in fronts(context.groups, {**COSTS, "money": context.money}):
        name = COLUMNS[front.against]
        for point in front.points:
            row = rows.setdefault(
                id(point.group), {**context.names(point.group), **graded({"y": short(point.quality)})}
            )
            row[name] = short(point.cost) or None  # nothing has no place on an axis of powers
            row[f"front_{name}"] = point.best
    return list(rows.values())


def grid_rows(context: ChartContext, target: float | None) -> list[Row]:
    """A cell per setting, where engines were tried in several."""
    rows = []
    for group in context.groups:
        if not group.good:
            continue
        first = group.first
        time = group.time_to(target) if target is not None else None
        train, result = group.median(lambda record: record.train_s), group.median(lambda record: record.result)
        memory = group.median(lambda record: record.peak_memory_bytes)
        alone = first.mode == "single"
        rows.append(
            {
                "row": group.setting or "the usual",
                "column": first.engine if alone else f"{first.engine} ({first.mode}, {count(first.workers, 'worker')})",
                "engine": first.engine,
                "workers": first.workers,
                "quality": short(result),
                "quality_text": quality(result),
                "time": short(time),
                "time_text": seconds(time),
                "train_s": short(train),
                "train_s_text": seconds(train),
                "memory": short(memory),
                "memory_text": size(memory),
            }
        )
    return rows if len({row["row"] for row in rows}) > 1 else []


CURVE = {"samples_seen": "samples", "train_s": "train_s", "core_s": "core_s"}  # by their names on the page
MOST_ROLES = 12  # lines in one picture of resources


def short(value: float | None) -> float | None:
    """A figure with as many places as a picture can show; None for what is no number."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class SeriesCache:
    """Where the series of records lie, and which of them turned out to be damaged: the page goes on without them."""

    folder: Path
    damaged: list[str] = field(default_factory=list)

    def read(self, record: Record, name: str) -> polars.DataFrame | None:
        """A series of a record, if it has one that can be read."""
        try:
            return series_of(self.folder, record, name)
        except TrainoffError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return None


def curve(record: Record, cache: SeriesCache, most: int) -> list[Row]:
    """The learning curve of a record in at most so many points; empty where nothing was learnt."""
    frame = cache.read(record, "curve")
    quality = None if frame is None else _quality(frame, record.metric)
    if frame is None or quality is None or not len(frame):
        return []
    columns = {name: frame[column].to_list() for column, name in CURVE.items() if column in frame.columns}
    columns["y"] = quality
    if record.network_bytes and record.isolation.get("own_network"):
        columns["bytes"] = _bytes_at(frame["wall_s"].to_list(), cache.read(record, "samples"))
    known = [at for at, value in enumerate(quality) if value is not None]  # some systems tell more losses at their end
    kept = [known[place] for place in thinned(len(known), most)]
    return [{name: short(values[at]) for name, values in columns.items()} for at in kept]


def _quality(frame: polars.DataFrame, metric: str) -> list[float | None] | None:
    """The workload's metric along a curve."""
    if metric == "error" and "accuracy" in frame.columns:
        return (1 - frame["accuracy"]).to_list()
    column = {"log-loss": "loss"}.get(metric, metric)
    return frame[column].to_list() if column in frame.columns else None


def _bytes_at(wall_s: Sequence[float], samples: polars.DataFrame | None) -> list[float | None]:
    """The bytes that had crossed the network at some moments."""
    import numpy as np

    if samples is None or "network_bytes" not in samples.columns:
        return [None] * len(wall_s)
    machine = samples.filter(samples["role"] == "machine").drop_nulls("network_bytes")
    if not len(machine):
        return [None] * len(wall_s)
    return [float(found) for found in np.interp(wall_s, machine["t_s"].to_numpy(), machine["network_bytes"].to_numpy())]


def thinned(length: int, most: int) -> list[int]:
    """Evenly spread places in a list, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [round(at * (length - 1) / (most - 1)) for at in range(most)]


def resources(record: Record, cache: SeriesCache, most: int) -> list[Row]:
    """Cores, memory and network of a record by role over time, at most so many points of each."""
    frame = cache.read(record, "samples")
    if frame is None or not {"t_s", "role", "user_s", "system_s", "rss", "pss"} <= set(frame.columns):
        return []
    rows = []
    for (role,), own in frame.group_by("role", maintain_order=True):
        if role != "machine":
            rows.append(_role(str(role), own, most))
    busiest = sorted(rows, key=lambda own: -max((row["cores"] or 0 for row in own), default=0))
    return [row for own in busiest[:MOST_ROLES] for row in own]


def _role(role: str, own: polars.DataFrame, most: int) -> list[Row]:

    kept = own[thinned(len(own), most)]
    t, spent = kept["t_s"].to_numpy(), (kept["user_s"].fill_null(0) + kept["system_s"].fill_null(0)).to_numpy()
    memory = kept["pss"].fill_null(kept["rss"]).to_list()
    return [
        {
            "role": role,
            "t": short(t[at]),
            "cores": rate,
            "memory": short(memory[at] and memory[at] / 1e6),
            "sent": moved,
        }
        for at, (rate, moved) in enumerate(zip(_rates(t, spent), _rates(t, _traffic(kept)), strict=True))
    ]


def _traffic(kept: polars.DataFrame) -> np.ndarray[Any, Any]:
    import numpy as np

    names = [name for name in ("sent_bytes", "received_bytes") if name in kept.columns]
    if not names:
        return np.full(len(kept), np.nan)
    return sum((kept[name].cast(float).fill_null(0).to_numpy() for name in names), np.zeros(len(kept))) / 1e6


def _rates(t: np.ndarray[Any, Any], total: np.ndarray[Any, Any]) -> list[float | None]:
    """What was added per second between looks; a counter that fell, as where a process ended, adds nothing."""
    import numpy as np

    gaps = np.maximum(np.diff(t, prepend=t[0] - 1.0 if len(t) else 0.0), 1e-3)
    gained = np.maximum(np.diff(total, prepend=total[0] if len(total) else 0.0), 0.0)
    return [None if np.isnan(found) else short(float(found)) for found in gained / gaps]


def pack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns, and words as numbers of a list: a third of the size. The page unpacks them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"rows": len(rows), "columns": {name: _column([row.get(name) for row in rows]) for name in names}}


def _column(values: list[Any]) -> dict[str, Any]:
    if not any(isinstance(value, str) for value in values):
        return {"values": values}
    words = {word: at for at, word in enumerate(dict.fromkeys(values))}
    return {"words": list(words), "at": [words[value] for value in values]}
