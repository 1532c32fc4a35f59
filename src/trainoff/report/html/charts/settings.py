"""The charts that compare settings: their times, their scaling, their costs."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainoff.analysis import SettingGroup
from trainoff.analysis.format import count, quality, seconds, size, target_text
from trainoff.analysis.pareto import COSTS, fronts
from trainoff.records import METRICS, Record
from trainoff.report.html.charts.base import (
    FAINT,
    LINEAR,
    LOG,
    X_SCALE,
    Chart,
    ChartChoice,
    ChartContext,
    ChartTable,
    Row,
    axis_choices,
    known,
    layer,
    metric_title,
    quality_axis,
    short,
    with_error,
    x_axis,
    y_choices,
)
from trainoff.report.html.style import LEGEND, LISTED, PHASES, Spec, colour, dash, shape, step, tooltip

LISTED_SETTINGS = 60  # settings that get a line each


class PhaseTimes(Chart):
    """The time of every setting by phase, as a bar."""

    name = contents = "phases"
    title = "Where the time went"
    listed = "name"
    most = LISTED_SETTINGS
    choices = (ChartChoice("seconds", {"stack": "zero"}), ChartChoice("shares", {"stack": "normalize"}))
    table = ChartTable("phases", [("name", "setting")], across=("phase", "seconds"))

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        self.about = self.limited("The median of each setting's runs, from the first process to the last.")
        places = {phase: place for place, phase in enumerate(PHASES)}
        rows = [
            {**context.columns(group), "phase": phase, "place": places.get(phase, 99), "seconds": short(spent)}
            for group in self.groups
            for phase, spent in group.phases_s().items()
        ]
        self.data = {"phases": rows}

    @property
    def spec(self) -> Spec:
        names = [self.context.name(group) for group in self.groups]
        scale = {"domain": list(PHASES), "range": list(PHASES.values())}
        legend = {**LEGEND, "labelExpr": "replace(datum.label, '_', ' ')"}
        return {
            "height": step(names),
            "data": {"name": "phases"},
            "mark": {"type": "bar"},
            "encoding": {
                "y": {"field": "name", "type": "nominal", "sort": names, "axis": LISTED},
                "x": {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "@stack"},
                "color": {"field": "phase", "scale": scale, "sort": list(PHASES), "legend": legend},
                "order": {"field": "place", "type": "quantitative"},
                "tooltip": tooltip("name", "phase", "seconds"),
            },
        }


class TimeToTarget(Chart):
    """The time to a target: a point per run, the median and its interval; hollow points did not reach it."""

    name = "target"
    contents = "time to target"
    title = "Time to target"
    listed = "name"
    most = LISTED_SETTINGS
    table = ChartTable(
        "runs", [("name", "setting"), ("seed", "seed"), ("s", "seconds of training"), ("outcome", "outcome")]
    )

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        self.about = self.limited(
            "A point per run; the bars are the median of each setting and its interval. "
            "Hollow: the run ended there without reaching the target."
        )
        runs = [row for group in self.groups for record in group.records for row in self._times(group, record)]
        self.data = {"runs": runs, "medians": self._medians()}
        badness = METRICS[self.metric].badness
        targets = sorted({row["target"] for row in runs}, key=lambda one: (one != self.target, badness(one)))
        self.choices = [
            ChartChoice(target_text(self.metric, one), {"x_scale": LOG}, {"target": one}) for one in targets
        ]

    def _times(self, group: SettingGroup, record: Record) -> list[Row]:
        """Return a run's time to every target; where it did not reach one, the time at which it ended."""
        rows = []
        for target in record.targets:
            reached = record.time_to_target.get(str(target)) if record.status == "ok" else None
            end = reached if reached is not None else record.train_s
            if end and record.status != "wrong-result":
                failed = "not reached" if record.status == "ok" else record.status
                rows.append({
                    **self.context.columns(group),
                    "target": target,
                    "seed": record.seed,
                    "s": short(end),
                    "reached": reached is not None,
                    "outcome": "reached" if reached is not None else failed,
                })  # fmt: skip
        return rows

    def _medians(self) -> list[Row]:
        """Return the median time of every setting to every target that it reaches, with its interval."""
        rows = []
        for group in self.groups:
            for target in group.first.targets:
                spread = group.spread(target)
                if spread and math.isfinite(spread.median):
                    # An interval without an end is drawn as far as any run of the setting went.
                    longest = max([spread.median, *(record.train_s or 0.0 for record in group.records)])
                    high = spread.high if math.isfinite(spread.high) else longest
                    interval = {"median": short(spread.median), "low": short(spread.low), "high": short(high)}
                    rows.append({**self.context.columns(group), "target": target, **interval, "runs": spread.n})
        return rows

    @property
    def spec(self) -> Spec:
        names = [self.context.name(group) for group in self.groups]
        colours = colour(self.context.styles, False)
        y = {"field": "name", "type": "nominal", "sort": names, "axis": LISTED}
        x = {"field": "s", "type": "quantitative", "title": "seconds of training", "scale": X_SCALE, "axis": FAINT}
        interval = {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colours}
        median = {
            "y": y,
            "x": {**x, "field": "median"},
            "color": colours,
            "tooltip": tooltip("name", "median", "low", "high", "runs"),
        }
        shapes = {"domain": [True, False], "range": ["circle", "triangle-right"]}
        run = {
            "y": y,
            "x": x,
            "color": colours,
            "shape": {"field": "reached", "scale": shapes, "legend": None},
            "fillOpacity": {"condition": {"test": "datum.reached", "value": 0.9}, "value": 0},
            "fill": colours,
            "tooltip": tooltip("name", "seed", "s", "outcome"),
        }
        layers = [
            layer("medians", {"type": "rule", "strokeWidth": 3, "opacity": 0.35}, interval),
            layer("medians", {"type": "tick", "thickness": 3, "size": 16}, median),
            layer("runs", {"type": "point", "size": 45}, run),
        ]
        return {"height": step(names), "layer": layers}


class Scaling(Chart):
    """Speed and time by number of workers: points are runs, lines join the medians."""

    name = "scaling"
    contents = "workers"
    title = "Scaling with workers"
    about = "Points are runs; lines join the medians of settings that differ only in the number of workers."
    table = ChartTable("scaled", [("name", "setting"), ("workers", "workers"), ("@y", "@y_title")])

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        target = self.target
        figures: dict[str, Callable[[Record], float | None]] = {
            "speed": lambda record: record.samples_per_s,
            "time": lambda record: record.time_to_target.get(str(target)),
            "train_s": lambda record: record.train_s,
        }
        runs: list[Row] = []
        medians: list[Row] = []
        for family, groups in self._families().items():
            columns = {id(group): {**self.context.columns(group), "family": family} for group in groups}
            runs += [
                {**columns[id(group)], "seed": record.seed, **{name: short(of(record)) for name, of in figures.items()}}
                for group in groups
                for record in group.good
            ]
            for group in sorted(groups, key=lambda group: group.first.workers):
                row = {**columns[id(group)], **{name: short(group.median(of)) for name, of in figures.items()}}
                medians.append({**row, "time": None if target is None else short(group.time_to(target))})
        self.data = {"scaling": runs, "scaled": medians}
        axes = {"speed": ("speed", "samples a second"), "train_s": ("training", "seconds of training")}
        if target is not None:
            axes["time"] = ("time to target", f"seconds to {target_text(self.metric, target)}")
        self.choices = y_choices(runs, axes)

    def _families(self) -> dict[str, list[SettingGroup]]:
        """Return the settings that differ only in the number of workers, where there are several numbers."""
        families: dict[str, list[SettingGroup]] = {}
        for group in self.groups:
            if group.good:
                keys = [key for key in group.label if key not in ("workers", "cores", "memory_gb")]
                parts = [group.first.engine, group.first.mode, *(str(group.label[key]) for key in keys)]
                families.setdefault(" · ".join(parts), []).append(group)
        return {name: groups for name, groups in families.items() if len({one.first.workers for one in groups}) > 1}

    @property
    def spec(self) -> Spec:
        styles = self.context.styles
        axis, scale = {"tickMinStep": 1, "format": "d"}, {"type": "log", "base": 2, "nice": False}
        x = {"field": "workers", "type": "quantitative", "title": "workers", "axis": axis, "scale": scale}
        y = {"field": "@y", "type": "quantitative", "title": "@y_title", "scale": {"type": "log"}}
        shared = {"x": x, "color": colour(styles)}
        valid = "isValid(datum['@y'])"
        line = {**shared, "y": y, "detail": {"field": "family"}, "strokeDash": dash()}
        point = {**shared, "y": y, "shape": shape(styles), "tooltip": tooltip("name", "seed", "workers", "@y")}
        layers = [
            layer("scaled", {"type": "line", "strokeWidth": 1.7, "opacity": 0.8}, line, only=valid),
            layer("scaling", {"type": "point", "filled": True, "size": 50}, point, only=valid),
        ]
        return {"layer": layers}


COLUMNS = {"seconds": "train_s", "core-seconds": "cpu_s", "memory": "memory", "bytes": "bytes", "money": "usd"}


class ParetoFront(Chart):
    """Quality against cost: a point per setting, and the Pareto front as a line."""

    name = "pareto"
    contents = "costs"
    about = "A point per setting. The line is the Pareto front. A setting without any such cost has no point."

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        self.title = f"{metric_title(self.metric)} against cost"
        rows: dict[int, Row] = {}
        costs = {**COSTS, "money": lambda record: context.usd(record, record.train_s)}
        for front in fronts(self.groups, costs):
            column = COLUMNS[front.against]
            for point in front.points:
                result = with_error({"y": short(point.quality)})
                row = rows.setdefault(id(point.group), {**self.context.columns(point.group), **result})
                row[column] = short(point.cost) or None  # zero has no place on a logarithmic axis
                row[f"front_{column}"] = point.best
        self.data = {"pareto": list(rows.values())}
        self.choices = axis_choices(self.data["pareto"], ("train_s", "cpu_s", "memory", "bytes", "usd"))
        columns = [("name", "setting"), ("@x", "@x_title"), ("y", self.metric), ("front_@x", "on the front")]
        self.table = ChartTable("pareto", columns)

    @property
    def spec(self) -> Spec:
        styles = self.context.styles
        x, y = x_axis(), quality_axis(self.metric)
        front = {
            "transform": [{"filter": "datum['front_@x']"}],
            "mark": {"type": "line", "interpolate": "step-after", "opacity": 0.5, "strokeDash": [4, 3]},
            "encoding": {"x": x, "y": y},
        }
        points = {
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour(styles),
                "shape": shape(styles),
                "opacity": {"condition": {"test": "datum['front_@x']", "value": 1}, "value": 0.6},
                "tooltip": tooltip("name", "y", "@x", y=self.metric),
            },
        }
        return {"data": {"name": "pareto"}, "transform": [{"filter": "isValid(datum['@x'])"}], "layer": [front, points]}


LEVEL = 5  # more column headings than these are tilted


class SettingGrid(Chart):
    """A cell per setting and engine, darker for larger values, where engines ran with several settings."""

    name = "grid"
    contents = "settings"
    title = "All settings"
    about = "Darker is more. Empty: not run, failed, or target not reached."
    listed = "row"
    table = ChartTable("grid", [("row", "setting")], across=("column", "@v_text"))

    def __init__(self, context: ChartContext) -> None:
        super().__init__(context)
        cells = [self._cell(group) for group in self.groups if group.good]
        rows = cells if len({cell["row"] for cell in cells}) > 1 else []
        self.data = {"grid": rows}
        target = f"time to {target_text(self.metric, self.target)}" if self.target is not None else ""
        values = {  # label, colours, scale
            "time": (target, "blues", LOG),
            "quality": (self.metric, "greens", LINEAR),
            "train_s": ("training", "blues", LOG),
            "memory": ("memory", "oranges", LOG),
        }
        self.choices = [
            ChartChoice(
                label, {"v_text": f"{name}_text", "v_title": label, "v_scale": scale, "scheme": scheme, "v": name}
            )
            for name, (label, scheme, scale) in values.items()
            if known(rows, name)
        ]

    def _cell(self, group: SettingGroup) -> Row:
        first = group.first
        cluster = "" if first.mode == "single" else f" ({first.mode}, {count(first.workers, 'worker')})"
        figures = {
            "quality": (group.median(lambda record: record.result), quality),
            "time": (group.time_to(self.target) if self.target is not None else None, seconds),
            "train_s": (group.median(lambda record: record.train_s), seconds),
            "memory": (group.median(lambda record: record.peak_memory_bytes), size),
        }
        columns = {"row": group.setting or "default", "column": first.engine + cluster}
        row: Row = {**columns, "engine": first.engine, "workers": first.workers}
        for name, (value, text) in figures.items():
            row |= {name: short(value), f"{name}_text": text(value)}
        return row

    @property
    def spec(self) -> Spec:
        data = self.data["grid"]
        rows, engines = (list(dict.fromkeys(row[name] for row in data)) for name in ("row", "engine"))
        by_engine = sorted(data, key=lambda row: (engines.index(row["engine"]), row["workers"], row["column"]))
        columns = list(dict.fromkeys(row["column"] for row in by_engine))
        padding = 16 if any(" (" in column for column in columns) else 3  # space for a second line
        level = {"labelAngle": 0, "labelPadding": padding, "labelExpr": "split(replace(datum.label, ' (', '|('), '|')"}
        tilted = {"labelAngle": 35, "labelAlign": "right", "labelLimit": 200}
        headings = {"orient": "top", **(level if len(columns) <= LEVEL else tilted)}
        position = {
            "y": {"field": "row", "type": "nominal", "sort": rows, "axis": LISTED},
            "x": {"field": "column", "type": "nominal", "sort": columns, "title": None, "axis": headings},
        }
        scale = {"scheme": {"name": "@scheme", "extent": [0.05, 0.6]}, "type": "@v_scale"}
        cells = {
            "mark": {"type": "rect"},
            "encoding": {
                **position,
                "color": {"field": "@v", "type": "quantitative", "legend": None, "scale": scale},
                "tooltip": tooltip("row", "column", "@v", row="setting", column="engine"),
            },
        }
        figures = {
            "mark": {"type": "text", "fontSize": 11},
            "encoding": {**position, "text": {"field": "@v_text"}, "color": {"value": "#111"}},
        }
        return {
            "height": step(rows),
            "data": {"name": "grid"},
            "transform": [{"filter": "isValid(datum['@v'])"}],
            "layer": [cells, figures],
        }
