"""The charts that show single runs over time: learning curves with their faults, and the use of resources."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Any

from trainoff.analysis import SettingGroup
from trainoff.analysis.format import fault_text, seconds, target_text
from trainoff.records import Record
from trainoff.report.html.charts.base import (
    Chart,
    ChartContext,
    ChartTable,
    Row,
    Rows,
    SeriesReader,
    axis_choices,
    layer,
    metric_title,
    quality_axis,
    short,
    with_error,
    x_axis,
    y_choices,
)
from trainoff.report.html.style import DASHES, LEGEND, Spec, colour, dash, shape, tooltip

if TYPE_CHECKING:
    import numpy as np
    import polars

MOST_RUNS = 300  # with more runs, a line is the median of a setting
MOST_POINTS = 12_000  # of a chart
FEWEST_PER_LINE, MOST_PER_LINE = 8, 60  # points of a line
WITH_TOOLTIPS = 2000  # with more points, only the ends of lines have tooltips
LEAST_ACCURACY = 0.5  # where a curve begins
AMOUNTS = ("samples", "core_s", "bytes", "usd")  # columns of a curve besides its time and its quality
CURVE = {"samples_seen": "samples", "train_s": "train_s", "core_s": "core_s"}  # columns by their names in a chart
TINY = 1e-6  # seconds, in place of zero


class LearningCurves(Chart):
    """Quality against time, samples or cost: a line per run, and a point where a fault was injected."""

    name = "curve"
    contents = "learning"

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        self.title = f"{metric_title(self.metric)} during training"
        self._many = len(context.runs) > MOST_RUNS
        rows = self._rows()
        ends = [row["y"] for row in rows if row["last"] and row["y"] is not None]
        if self.metric == "accuracy" and ends and min(ends) > LEAST_ACCURACY:
            rows = [row for row in rows if (row["y"] or 0) >= LEAST_ACCURACY]
        targets = [with_error({"y": one, "label": target_text(self.metric, one)}) for one in context.first.targets]
        points = fault_rows(rows, {_trial(record): record.fault for _, record in context.runs if record.fault})
        curves = [row for row in rows if row["train_s"]]
        self.data = {"curves": curves, "targets": targets, **({"faults": points} if points else {})}
        lines = "A line per setting: the median of its runs." if self._many else "A line per run."
        ends_in = "It ends in the engine's symbol, hollow if the trial failed. Dotted lines are targets."
        faults = " A cross is a fault, a diamond the end of a fault." if points else ""
        modes = {group.first.mode for group in self.groups}
        named = ", ".join(f"{text} {mode}" for mode, (_, text) in DASHES.items() if mode in modes)
        dashes = f" Modes: {named}." if len(modes) > 1 and named else ""
        self.about = f"{lines} {ends_in}{dashes}{faults}"
        self.choices = axis_choices(curves, ("train_s", *AMOUNTS))
        columns = [("name", "setting"), ("seed", "seed"), ("status", "status"), ("@x", "@x_title"), ("y", self.metric)]
        self.table = ChartTable("curves", columns, only={"last": True})

    def _rows(self) -> list[Row]:
        if self._many:
            return [row for group in self.groups for row in self._median_curve(group)]
        most = max(FEWEST_PER_LINE, min(MOST_PER_LINE, MOST_POINTS // max(1, len(self.context.runs))))
        return [row for group, record in self.context.runs for row in self._curve(group, record, most)]

    def _curve(self, group: SettingGroup, record: Record, most: int) -> list[Row]:
        points = read_curve(record, self.context.series, most)
        return [
            {
                **self.context.columns(group),
                "trial": _trial(record),
                "seed": record.seed,
                "status": record.status,
                **with_error(point),
                "usd": self.context.usd(record, point["train_s"]),
                "last": index == len(points) - 1,
            }
            for index, point in enumerate(points)
        ]

    def _median_curve(self, group: SettingGroup) -> Iterator[Row]:
        """Yield the medians of a setting's runs at the numbers of samples at which most of them were evaluated."""
        curves = [self._curve(group, record, FEWEST_PER_LINE) for record in group.good]
        by_samples: dict[float, list[Row]] = {}
        for row in (row for curve in curves for row in curve):
            by_samples.setdefault(row["samples"], []).append(row)
        shared = [rows for _, rows in sorted(by_samples.items()) if 2 * len(rows) > len(curves)]
        for index, rows in enumerate(shared):
            medians = {key: _median(rows, key) for key in ("train_s", "core_s", "bytes", "usd", "y", "error")}
            yield {**rows[0], **medians, "trial": group.name, "seed": "median", "last": index == len(shared) - 1}

    @property
    def spec(self) -> Spec:
        styles = self.context.styles
        colours, x, y = colour(styles), x_axis(), quality_axis(self.metric)
        tooltips = tooltip("name", "seed", "status", "samples", "train_s", "core_s", "y", y=self.metric)
        at = {"x": x, "y": y}
        line = {**at, "color": colours, "detail": {"field": "trial"}, "strokeDash": dash()}
        end = {
            **at,
            "color": colours,
            "shape": shape(styles),
            "fill": colours,
            "fillOpacity": {"condition": {"test": "datum.status === 'ok'", "value": 1}, "value": 0},
            "tooltip": tooltips,
        }
        fault_shape = {"condition": {"test": "datum.what === 'fault'", "value": "cross"}, "value": "diamond"}
        facts = tooltip("what", "name", "seed", "fault", "train_s", "noticed after", "back after", "state")
        fault = {**at, "color": colours, "shape": fault_shape, "tooltip": facts}
        label = {"type": "text", "x": 3, "align": "left", "baseline": "bottom", "fontSize": 10, "opacity": 0.8}
        invisible = {"type": "point", "size": 120, "opacity": 0, "filled": True, "aria": False}
        layers = [
            layer("targets", {"type": "rule", "strokeDash": [2, 4], "opacity": 0.6}, {"y": y}),
            layer("curves", {"type": "line", "strokeWidth": 1.7, "opacity": 0.8, "clip": True}, line),
            layer("targets", label, {"y": y, "text": {"field": "label"}}),
        ]
        if len(self.data["curves"]) <= WITH_TOOLTIPS:
            layers.append(layer("curves", invisible, {**at, "tooltip": tooltips}))
        layers.append(layer("curves", {"type": "point", "size": 55, "opacity": 1}, end, only="datum.last"))
        if "faults" in self.data:
            layers.append(layer("faults", {"type": "point", "size": 130, "strokeWidth": 1.5, "opacity": 1}, fault))
        return {"layer": layers}


def _trial(record: Record) -> str:
    return f"{record.trial_id}.{record.attempt}"


def _median(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return short(statistics.median(values)) if values else None


def read_curve(record: Record, series: SeriesReader, most: int) -> list[Row]:
    """Return at most `most` points of a record's learning curve."""
    frame = series.read(record, "curve")
    quality = None if frame is None else _quality(frame, record.metric)
    if frame is None or quality is None or not len(frame):
        return []
    columns = {name: frame[column].to_list() for column, name in CURVE.items() if column in frame.columns}
    columns["y"] = quality
    if record.network_bytes and record.isolation.get("own_network"):
        columns["bytes"] = _bytes_at(frame["wall_s"].to_list(), series.read(record, "samples"))
    evaluated = [index for index, value in enumerate(quality) if value is not None]  # other rows have only a loss
    kept = [evaluated[index] for index in _thin(len(evaluated), most)]
    return [{name: short(values[index]) for name, values in columns.items()} for index in kept]


def _quality(frame: polars.DataFrame, metric: str) -> list[float | None] | None:
    """Return the workload's metric along a curve."""
    if metric == "error" and "accuracy" in frame.columns:
        return (1 - frame["accuracy"]).to_list()
    column = {"log-loss": "loss"}.get(metric, metric)
    return frame[column].to_list() if column in frame.columns else None


def _bytes_at(wall_s: Sequence[float], samples: polars.DataFrame | None) -> list[float | None]:
    """Return the bytes that had crossed the network at these times."""
    import numpy as np

    if samples is not None and "network_bytes" in samples.columns:
        machine = samples.filter(samples["role"] == "machine").drop_nulls("network_bytes")
        if len(machine):
            return list(map(float, np.interp(wall_s, machine["t_s"].to_numpy(), machine["network_bytes"].to_numpy())))
    return [None] * len(wall_s)


def _thin(length: int, most: int) -> list[int]:
    """Return evenly spaced indices of a list, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [round(index * (length - 1) / (most - 1)) for index in range(most)]


def fault_rows(curves: Rows, faults: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the points of every run with a fault, interpolated on its curve; `faults` are by trial."""
    by_trial: dict[str, list[Mapping[str, Any]]] = {}
    for row in curves:
        if faults.get(row["trial"], {}).get("at_s") is not None and row["train_s"] is not None:
            by_trial.setdefault(row["trial"], []).append(row)
    return [point for trial, curve in by_trial.items() for point in _fault_points(curve, faults[trial])]


def _fault_points(curve: Rows, done: Mapping[str, Any]) -> Iterator[Row]:
    columns = {key: curve[0][key] for key in ("name", "engine", "mode", "workers", "trial", "seed")}
    noticed, back = seconds(done["detected_s"]), seconds(done["recovered_s"])
    facts = {"fault": fault_text(done), "noticed after": noticed, "back after": back, "state": done["state"]}
    times = {"fault": done["at_s"]}
    if done["healed_s"] is not None:
        times["healed"] = done["at_s"] + done["healed_s"]
    for what, time in times.items():
        yield {**columns, **facts, "what": what, "train_s": short(time), **_interpolated(curve, time)}


def _interpolated(curve: Rows, time: float) -> dict[str, float | None]:
    """Return a curve's figures at a time; its quality such that the point lies on the line on logarithmic axes."""
    times = [row["train_s"] for row in curve]
    figures = {name: _between(times, [row.get(name) for row in curve], time) for name in AMOUNTS}
    log_times, log_time = [log(max(one, TINY)) for one in times], log(max(time, TINY))
    log_errors = [None if row["error"] is None else log(row["error"]) for row in curve]
    log_error = _between(log_times, log_errors, log_time)
    figures["y"] = _between(log_times, [row["y"] for row in curve], log_time)
    return {**figures, "error": None if log_error is None else short(exp(log_error))}


def _between(times: list[float], values: list[Any], time: float) -> float | None:
    """Interpolate; None where a value is not known."""
    import numpy as np

    return None if None in values else short(float(np.interp(time, times, values)))


USED = {"cores": ("CPU", "cores busy"), "memory": ("memory", "MB of memory"), "sent": ("network", "MB a second")}
MOST_ROLES = 12  # lines of one run


class ResourceUsage(Chart):
    """Cores, memory and network of one run by role, over time."""

    name = contents = "resources"
    title = "Resources over time"
    pick = "name"
    most = 60
    table = ChartTable("used", [("role", "role"), ("@y", "@y_title, median"), ("most_@y", "maximum")])

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        self.about = self.limited("One run per setting; a line per role.")
        most = max(20, min(120, MOST_POINTS // (4 * max(1, len(context.groups)))))
        rows = []
        for group in self.groups:
            record = (group.good or group.records)[0]
            columns = {"name": context.name(group), "engine": record.engine}
            rows += [{**columns, **row} for row in read_resources(record, context.series, most)]
        self.data = {"resources": rows, "used": self._summary(rows)}
        self.choices = y_choices(rows, USED)

    def _summary(self, rows: Sequence[Row]) -> list[Row]:
        """Return the median and the maximum of every role of every setting."""
        roles: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            roles.setdefault((row["name"], row["role"]), []).append(row)
        summary = []
        for of_role in roles.values():
            row = {key: of_role[0][key] for key in ("name", "engine", "role")}
            for key in USED:
                values = [each[key] for each in of_role if each.get(key) is not None]
                row |= {key: _median(of_role, key), f"most_{key}": max(values, default=None)}
            summary.append(row)
        return summary

    @property
    def spec(self) -> Spec:
        return {
            "data": {"name": "resources"},
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": {
                "x": {"field": "t", "type": "quantitative", "title": "seconds since the trial began"},
                "y": {"field": "@y", "type": "quantitative", "title": "@y_title"},
                "color": {"field": "role", "type": "nominal", "legend": {**LEGEND, "symbolType": "stroke"}},
                "tooltip": tooltip("role", "t", "@y"),
            },
        }


def read_resources(record: Record, series: SeriesReader, most: int) -> list[Row]:
    """Return cores, memory and network of a record's busiest roles over time, at most `most` points of each."""
    frame = series.read(record, "samples")
    if frame is None or not {"t_s", "role", "user_s", "system_s", "rss", "pss"} <= set(frame.columns):
        return []
    roles = [
        _role_rows(str(role), samples, most)
        for (role,), samples in frame.group_by("role", maintain_order=True)
        if role != "machine"
    ]
    busiest = sorted(roles, key=lambda rows: -max((row["cores"] or 0 for row in rows), default=0))
    return [row for rows in busiest[:MOST_ROLES] for row in rows]


def _role_rows(role: str, samples: polars.DataFrame, most: int) -> list[Row]:
    kept = samples[_thin(len(samples), most)]
    t, cpu_s = kept["t_s"].to_numpy(), (kept["user_s"].fill_null(0) + kept["system_s"].fill_null(0)).to_numpy()
    memory = kept["pss"].fill_null(kept["rss"]).to_list()
    rates = zip(_rates(t, cpu_s), _rates(t, _megabytes(kept)), strict=True)
    return [
        {"role": role, "t": short(t[index]), "cores": cores, "memory": short(used and used / 1e6), "sent": sent}
        for index, (used, (cores, sent)) in enumerate(zip(memory, rates, strict=True))
    ]


def _megabytes(samples: polars.DataFrame) -> np.ndarray[Any, Any]:
    """Return the megabytes sent and received, in total."""
    import numpy as np

    names = [name for name in ("sent_bytes", "received_bytes") if name in samples.columns]
    if not names:
        return np.full(len(samples), np.nan)
    return sum((samples[name].cast(float).fill_null(0).to_numpy() for name in names), np.zeros(len(samples))) / 1e6


def _rates(t: np.ndarray[Any, Any], total: np.ndarray[Any, Any]) -> list[float | None]:
    """Return the increase per second between samples; a counter that fell, as when a process ended, adds nothing."""
    import numpy as np

    intervals = np.maximum(np.diff(t, prepend=t[0] - 1.0 if len(t) else 0.0), 1e-3)
    increases = np.maximum(np.diff(total, prepend=total[0] if len(total) else 0.0), 0.0)
    return [None if np.isnan(rate) else short(float(rate)) for rate in increases / intervals]
