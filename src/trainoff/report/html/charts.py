"""The charts as Vega-Lite: which of them a workload gets, and how each is drawn, on the page and elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from trainoff.analysis import headline_target
from trainoff.analysis.format import fault_text, seconds, target_text
from trainoff.records import METRICS
from trainoff.report.html import chart_data, charts
from trainoff.report.html.chart_data import ChartContext, short
from trainoff.report.html.style import (
    DASHES,
    LEGEND,
    LISTED,
    PHASES,
    Look,
    Spec,
    colour,
    dash,
    looks_of_settings,
    shape,
    step,
    tooltip,
)

Rows = Sequence[Mapping[str, Any]]

HOLE = re.compile("@([a-z_]+)")
WORDS = {"curve": "learning", "target": "time to target", "scaling": "workers", "pareto": "costs", "grid": "settings"}
NEAR = 2000  # points of curves that can be pointed at; with more, only their ends
LEVEL = 5  # columns whose headings stand level; with more they are tilted


@dataclass(frozen=True)
class ChartChoice:
    """One thing that a chart can show: what fills the holes, and which rows count."""

    label: str
    holes: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)  # rows with these values


@dataclass(frozen=True)
class ChartTable:
    """The figures of a chart for who would rather read them: which rows, and which of their columns by what headings.

    `across` names a column whose values are headings too, and the column of the figures under them.
    """

    data: str
    columns: Sequence[tuple[str, str]]
    only: Mapping[str, Any] = field(default_factory=dict)
    across: tuple[str, str] | None = None


@dataclass(frozen=True)
class Chart:
    """A picture of some rows: its specification, its datasets, and the choices it offers, the first one first."""

    name: str
    title: str
    about: str  # what is to be seen here, for those who read and those who cannot see it
    spec: Spec
    data: Mapping[str, Rows]
    choices: Sequence[ChartChoice]
    table: ChartTable
    pick: str | None = None  # the column of which one value is shown at a time
    listed: str | None = None  # the column that has a line for each of its values

    @property
    def word(self) -> str:
        """What a list of contents calls it."""
        return WORDS.get(self.name, self.name)

    @property
    def picks(self) -> list[str]:
        """What can be picked, the first one first."""
        rows = (row for data in self.data.values() for row in data)
        return list(dict.fromkeys(str(row[self.pick]) for row in rows)) if self.pick else []

    def drawn(self, choice: ChartChoice | None = None) -> Spec:
        """The whole specification with its data, ready for any program that knows Vega-Lite."""
        chosen = choice or self.choices[0]
        only = {**chosen.only, **({self.pick: self.picks[0]} if self.pick else {})}
        datasets = {name: [row for row in rows if _counts(row, only)] for name, rows in self.data.items()}
        spec: Spec = fill(self.spec, chosen.holes)
        return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", **spec, "datasets": datasets}


def fill(part: Any, holes: Mapping[str, str]) -> Any:
    """The specification, or a part of it, with its holes filled."""
    if isinstance(part, str):
        return HOLE.sub(lambda found: holes.get(found[1], found[0]), part)
    if isinstance(part, dict):
        return {key: one if _is_data(key, one) else fill(one, holes) for key, one in part.items()}
    return [fill(one, holes) for one in part] if isinstance(part, list) else part


def _is_data(key: str, part: Any) -> bool:
    return key in ("domain", "sort") and isinstance(part, list)


def _counts(row: Mapping[str, Any], only: Mapping[str, Any]) -> bool:
    return all(row.get(name, value) == value for name, value in only.items())


def curve(looks: Sequence[Look], metric: str, points: int) -> Spec:
    """Quality against what it took: a line per run."""
    y = quality(metric)
    told = tooltip("name", "seed", "status", "samples", "train_s", "core_s", "y", y=metric)
    lines = {
        "data": {"name": "curves"},
        "mark": {"type": "line", "strokeWidth": 1.7, "opacity": 0.8, "clip": True},
        "encoding": {
            "x": measure("x"),
            "y": y,
            "color": colour(looks),
            "detail": {"field": "trial"},
            "strokeDash": dash(),
        },
    }
    ends = {
        "data": {"name": "curves"},
        "transform": [{"filter": "datum.last"}],
        "mark": {"type": "point", "size": 55, "opacity": 1},
        "encoding": {
            "x": measure("x"),
            "y": y,
            "color": colour(looks),
            "shape": shape(looks),
            "fill": colour(looks),
            "fillOpacity": {"condition": {"test": "datum.status === 'ok'", "value": 1}, "value": 0},
            "tooltip": told,
        },
    }
    near = {
        "data": {"name": "curves"},
        "mark": {"type": "point", "size": 120, "opacity": 0, "filled": True, "aria": False},
        "encoding": {"x": measure("x"), "y": y, "tooltip": told},
    }
    goals = {
        "data": {"name": "targets"},
        "mark": {"type": "rule", "strokeDash": [2, 4], "opacity": 0.6},
        "encoding": {"y": y},
    }
    named = {
        "data": {"name": "targets"},
        "mark": {"type": "text", "x": 3, "align": "left", "baseline": "bottom", "fontSize": 10, "opacity": 0.8},
        "encoding": {"y": y, "text": {"field": "label"}},
    }
    return {"layer": [goals, lines, named, *([near] if points <= NEAR else []), ends]}


def target(looks: Sequence[Look], order: Sequence[str]) -> Spec:
    """Time to a target: every repetition as a mark, the median and its interval; runs that never came there hollow."""
    y = {"field": "name", "type": "nominal", "sort": list(order), "axis": LISTED}
    x = {
        "field": "s",
        "type": "quantitative",
        "title": "seconds of training",
        "scale": {"type": "@x_scale", "nice": False, "padding": 12},
        "axis": FAINT,
    }
    spread = {
        "data": {"name": "medians"},
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.35},
        "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour(looks, False)},
    }
    middle = {
        "data": {"name": "medians"},
        "mark": {"type": "tick", "thickness": 3, "size": 16},
        "encoding": {
            "y": y,
            "x": {**x, "field": "median"},
            "color": colour(looks, False),
            "tooltip": tooltip("name", "median", "low", "high", "runs"),
        },
    }
    runs = {
        "data": {"name": "runs"},
        "mark": {"type": "point", "size": 45},
        "encoding": {
            "y": y,
            "x": x,
            "color": colour(looks, False),
            "shape": {"field": "reached", "scale": {"domain": [True, False], "range": ["circle", "triangle-right"]},
                      "legend": None},
            "fillOpacity": {"condition": {"test": "datum.reached", "value": 0.9}, "value": 0},
            "fill": colour(looks, False),
            "tooltip": tooltip("name", "seed", "s", "outcome"),
        },
    }  # fmt: skip
    return {"height": step(order), "layer": [spread, middle, runs]}


def phases(order: Sequence[str]) -> Spec:
    """Where the time went: a bar per setting, in the order of the phases."""
    scale = {"domain": list(PHASES), "range": list(PHASES.values())}
    legend = {**LEGEND, "labelExpr": "replace(datum.label, '_', ' ')"}
    return {
        "height": step(order),
        "data": {"name": "phases"},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": list(order), "axis": LISTED},
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "@stack"},
            "color": {"field": "phase", "scale": scale, "sort": list(PHASES), "legend": legend},
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": tooltip("name", "phase", "seconds"),
        },
    }


def resources() -> Spec:
    """What a trial used while it ran, by role."""
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


def scaling(looks: Sequence[Look]) -> Spec:
    """What more workers bring: points are runs, lines join the medians."""
    x = {"field": "workers", "type": "quantitative", "title": "workers",
         "axis": {"tickMinStep": 1, "format": "d"}, "scale": {"type": "log", "base": 2, "nice": False}}  # fmt: skip
    y = {"field": "@y", "type": "quantitative", "title": "@y_title", "scale": {"type": "log"}}
    shared = {"x": x, "color": colour(looks)}
    known = [{"filter": "isValid(datum['@y'])"}]
    lines = {
        "data": {"name": "scaled"},
        "transform": known,
        "mark": {"type": "line", "strokeWidth": 1.7, "opacity": 0.8},
        "encoding": {**shared, "y": y, "detail": {"field": "family"}, "strokeDash": dash()},
    }
    points = {
        "data": {"name": "scaling"},
        "transform": known,
        "mark": {"type": "point", "filled": True, "size": 50},
        "encoding": {**shared, "y": y, "shape": shape(looks), "tooltip": tooltip("name", "seed", "workers", "@y")},
    }
    return {"layer": [lines, points]}


def pareto(looks: Sequence[Look], metric: str) -> Spec:
    """What quality costs: a mark per setting, a line through those that nothing beats in both."""
    x, y = measure("x"), quality(metric)
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
            "color": colour(looks),
            "shape": shape(looks),
            "opacity": {"condition": {"test": "datum['front_@x']", "value": 1}, "value": 0.6},
            "tooltip": tooltip("name", "y", "@x", y=metric),
        },
    }
    return {"data": {"name": "pareto"}, "transform": [{"filter": "isValid(datum['@x'])"}], "layer": [front, points]}


def grid(settings: Sequence[str], engines: Sequence[str]) -> Spec:
    """Every setting that was tried, of every engine: darker is more."""
    two = 16 if any(" (" in engine for engine in engines) else 3  # room for a second line
    level = {"labelAngle": 0, "labelPadding": two, "labelExpr": "split(replace(datum.label, ' (', '|('), '|')"}
    tilted = {"labelAngle": 35, "labelAlign": "right", "labelLimit": 200}
    heads = {"orient": "top", **(level if len(engines) <= LEVEL else tilted)}
    place = {
        "y": {"field": "row", "type": "nominal", "sort": list(settings), "axis": LISTED},
        "x": {"field": "column", "type": "nominal", "sort": list(engines), "title": None, "axis": heads},
    }
    cells = {
        "mark": {"type": "rect"},
        "encoding": {
            **place,
            "color": {"field": "@v", "type": "quantitative", "legend": None,
                      "scale": {"scheme": {"name": "@scheme", "extent": [0.05, 0.6]}, "type": "@v_scale"}},
            "tooltip": tooltip("row", "column", "@v", row="setting", column="engine"),
        },
    }  # fmt: skip
    figures = {
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {**place, "text": {"field": "@v_text"}, "color": {"value": "#111"}},
    }
    return {
        "height": step(settings),
        "data": {"name": "grid"},
        "transform": [{"filter": "isValid(datum['@v'])"}],
        "layer": [cells, figures],
    }


# As many places as tell the best from a perfect one, and a tick from the next; the same for all of an axis.
LEAST, SPAN = "domain('y')[0]", "(domain('y')[1] - domain('y')[0])"
PLACES = f"clamp(ceil(-log(min({LEAST}, {SPAN} / 4)) / LN10), 2, 4)"
# Lines of an axis of powers that have no figure are fainter.
FAINT = {"gridOpacity": {"condition": {"test": "datum.label !== ''", "value": 1}, "value": 0.4}}


def measure(hole: str) -> Spec:
    """An axis of a figure that is chosen on the page."""
    scale = {"type": f"@{hole}_scale", "nice": False, "padding": 12}
    of_bytes = f"indexof(['memory', 'bytes'], '@{hole}') >= 0"  # 400M instead of 400,000,000
    axis = {**FAINT, "labelExpr": f"datum.label && {of_bytes} ? format(datum.value, '~s') : datum.label"}
    return {"field": f"@{hole}", "type": "quantitative", "title": f"@{hole}_title", "scale": scale, "axis": axis}


def quality(metric: str) -> Spec:
    """An axis of quality; accuracies near 1 are spread out: every halving of the error takes as much room."""
    if metric != "accuracy":
        return {"field": "y", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    axis = {"tickCount": 6, "labelExpr": f"format(1 - datum.value, '.' + {PLACES} + 'f')"}
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8}
    return {"field": "error", "type": "quantitative", "title": metric, "scale": scale, "axis": axis}


AMOUNTS = ("samples", "core_s", "bytes", "usd")  # what a curve has besides its time and its quality
TINY = 1e-6  # seconds, where there is none


def fault_rows(curves: Rows, faults: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The marks of every run that was struck, given its curve; between two points of it they lie on the line.

    `faults` has the record's fault by trial.
    """
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in curves:
        if faults.get(row["trial"], {}).get("at_s") is not None and row["train_s"] is not None:
            lines.setdefault(row["trial"], []).append(row)
    return [mark for trial, line in lines.items() for mark in _marks(line, faults[trial])]


def _marks(line: Sequence[Mapping[str, Any]], done: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    named = {key: line[0][key] for key in ("name", "engine", "mode", "workers", "trial", "seed")}
    noticed, back = seconds(done["detected_s"]), seconds(done["recovered_s"])
    told = {"fault": fault_text(done), "noticed after": noticed, "back after": back, "state": done["state"]}
    moments = {"fault": done["at_s"]}
    if done["healed_s"] is not None:
        moments["healed"] = done["at_s"] + done["healed_s"]
    for what, at in moments.items():
        yield {**named, **told, "what": what, "train_s": short(at), **_there(line, at)}


def _there(line: Sequence[Mapping[str, Any]], at: float) -> dict[str, float | None]:
    """What a curve had come to at a moment; its quality is where the line is drawn, on axes of powers."""
    times = [row["train_s"] for row in line]
    found = {name: _between(times, [row.get(name) for row in line], at) for name in AMOUNTS}
    powers = [log(max(time, TINY)) for time in times]
    error = _between(powers, [None if row["error"] is None else log(row["error"]) for row in line], log(max(at, TINY)))
    found["y"] = _between(powers, [row["y"] for row in line], log(max(at, TINY)))
    return {**found, "error": None if error is None else short(exp(error))}


def _between(times: list[float], values: list[Any], at: float) -> float | None:
    """The value at a moment by those around it; None where one is not known."""
    import numpy as np

    return None if None in values else short(float(np.interp(at, times, values)))


def layer(looks: Sequence[Look], metric: str) -> Spec:
    """The marks as a layer of the chart of curves, in the colours of their engines."""
    return {
        "data": {"name": "faults"},
        "mark": {"type": "point", "size": 130, "strokeWidth": 1.5, "opacity": 1},
        "encoding": {
            "x": measure("x"),
            "y": quality(metric),
            "color": colour(looks),
            "shape": {"condition": {"test": "datum.what === 'fault'", "value": "cross"}, "value": "diamond"},
            "tooltip": tooltip("what", "name", "seed", "fault", "train_s", "noticed after", "back after", "state"),
        },
    }


LOG, LINEAR = "log", "linear"
LEARNT = 0.5
LISTED_SETTINGS = 60  # settings that get a line each
AXES = {  # what a curve or a front can be drawn against: label, title of the axis
    "train_s": ("seconds", "seconds of training"),
    "samples": ("samples", "samples seen"),
    "core_s": ("core-seconds", "CPU seconds of training"),
    "cpu_s": ("core-seconds", "CPU seconds of the whole trial"),
    "memory": ("memory", "bytes of memory at most"),
    "bytes": ("bytes", "bytes over the network"),
    "usd": ("money", "US dollars"),
}
USED = {"cores": ("CPU", "cores busy"), "memory": ("memory", "MB of memory"), "sent": ("network", "MB a second")}


def drawn(context: ChartContext, looks: Sequence[Look]) -> list[Chart]:
    """The charts of one workload in the order of the page."""
    looks = looks_of(context) or looks
    found = [
        _curve(context, looks),
        _phases(context),
        _target(context, looks),
        _scaling(context, looks),
        _pareto(context, looks),
        _grid(context),
        _resources(context),
    ]
    return [chart for chart in found if chart and chart.choices and any(chart.data.values())]


def looks_of(context: ChartContext) -> list[Look]:
    """The looks of the settings where nothing else tells them apart; else none."""
    return looks_of_settings([context.name(group) for group in context.groups]) if context.alike else []


def _against(data: Rows, names: Sequence[str]) -> list[ChartChoice]:
    """The axes for which there are figures."""
    return [
        ChartChoice(AXES[name][0], {"x_title": AXES[name][1], "x_scale": LOG, "x": name})
        for name in names
        if any(row.get(name) for row in data)
    ]


def _curve(context: ChartContext, looks: Sequence[Look]) -> Chart:
    first, every = context.groups[0].first, chart_data.curve_rows(context)
    low = _low(context, every)
    data = chart_data.above(every, low)
    targets = [chart_data.graded({"y": target, "label": target_text(first.metric, target)}) for target in first.targets]
    faults = {f"{record.trial_id}.{record.attempt}": record.fault for _, record in context.runs if record.fault}
    struck = charts.fault_rows(data, faults)
    seen = [row for row in data if row["train_s"]]
    spec = charts.curve(looks, first.metric, len(seen))
    more = " A cross: a fault was done; a diamond: it was healed." if struck else ""
    return Chart(
        "curve",
        f"{first.metric.capitalize()} against what it took",
        f"{_line_of(context)} It ends in a mark, hollow where the trial failed. Dotted across: the targets."
        + _dashes(context)
        + more,
        {"layer": [*spec["layer"], charts.layer(looks, first.metric)]} if struck else spec,
        {
            "curves": seen,
            "targets": targets,
            **({"faults": struck} if struck else {}),
        },
        _against(data, ("train_s", "samples", "core_s", "bytes", "usd")),
        ChartTable(
            "curves",
            [("name", "setting"), ("seed", "seed"), ("status", "ended"), ("@x", "@x_title"), ("y", first.metric)],
            only={"last": True},
        ),
    )


def _dashes(context: ChartContext) -> str:
    """What the dashes of lines mean, where there are several kinds."""
    found = {group.first.mode for group in context.groups}
    told = [f"{words} {mode}" for mode, (_, words) in DASHES.items() if mode in found]
    return f" Lines: {', '.join(told)}." if len(found) > 1 and told else ""


def _line_of(context: ChartContext) -> str:
    few = len(context.runs) <= chart_data.MOST_RUNS
    return "A line per run." if few else "A line per setting: the median of its runs."


def _cut(about: str, context: ChartContext, most: int) -> str:
    """What a chart is about, and that it leaves settings out."""
    every = len(context.groups)
    return about if every <= most else f"{about} The best {most} of {every} settings."


def _low(context: ChartContext, data: Rows) -> float | None:
    """An accuracy below which a curve need not be seen; None where some run never got above it."""
    ends = [row["y"] for row in data if row["last"] and row["y"] is not None]
    return LEARNT if context.groups[0].first.metric == "accuracy" and ends and min(ends) > LEARNT else None


def _target(context: ChartContext, looks: Sequence[Look]) -> Chart:
    first, best = context.groups[0].first, headline_target(context.groups)
    about = _cut(
        "Every run is a mark, the bar a setting's median with its interval. Hollow: ended there without the target.",
        context,
        LISTED_SETTINGS,
    )
    context = context.best(LISTED_SETTINGS)
    data, order = chart_data.run_rows(context), [context.name(group) for group in context.groups]
    badness = METRICS[first.metric].badness
    targets = sorted({row["target"] for row in data}, key=lambda target: (target != best, badness(target)))
    return Chart(
        "target",
        "Time to the target",
        about,
        charts.target(looks, order),
        {"runs": data, "medians": chart_data.median_rows(context)},
        [ChartChoice(target_text(first.metric, target), {"x_scale": LOG}, {"target": target}) for target in targets],
        ChartTable(
            "runs", [("name", "setting"), ("seed", "seed"), ("s", "seconds of training"), ("outcome", "outcome")]
        ),
        listed="name",
    )


def _phases(context: ChartContext) -> Chart:
    about = _cut("The median of each setting's runs, from its first process to its last.", context, LISTED_SETTINGS)
    context = context.best(LISTED_SETTINGS)
    return Chart(
        "phases",
        "Where the time went",
        about,
        charts.phases([context.name(group) for group in context.groups]),
        {"phases": chart_data.phase_rows(context)},
        [ChartChoice("seconds", {"stack": "zero"}), ChartChoice("shares", {"stack": "normalize"})],
        ChartTable("phases", [("name", "setting")], across=("phase", "seconds")),
        listed="name",
    )


def _scaling(context: ChartContext, looks: Sequence[Look]) -> Chart:
    target = headline_target(context.groups)
    data = chart_data.scaling_rows(context, target)
    first = context.groups[0].first
    offered = {"speed": ("speed", "samples a second"), "train_s": ("training", "seconds of training")}
    if target is not None:
        offered["time"] = ("time to target", f"seconds to {target_text(first.metric, target)}")
    return Chart(
        "scaling",
        "What more workers bring",
        "Points are runs, lines join the medians of what differs in nothing but the workers.",
        charts.scaling(looks),
        {"scaling": data, "scaled": chart_data.scaled_rows(context, target)},
        [
            ChartChoice(label, {"y_title": title, "y": name})
            for name, (label, title) in offered.items()
            if _any(data, name)
        ],
        ChartTable("scaled", [("name", "setting"), ("workers", "workers"), ("@y", "@y_title")]),
    )


def _any(data: Rows, name: str) -> bool:
    return any(row.get(name) is not None for row in data)


def _pareto(context: ChartContext, looks: Sequence[Look]) -> Chart | None:
    data = chart_data.pareto_rows(context)
    metric = context.groups[0].first.metric
    return Chart(
        "pareto",
        f"What {metric} costs",
        "A mark per setting. The line joins those that nothing beats in both. What takes none has no mark.",
        charts.pareto(looks, metric),
        {"pareto": data},
        _against(data, ("train_s", "cpu_s", "memory", "bytes", "usd")),
        ChartTable(
            "pareto", [("name", "setting"), ("@x", "@x_title"), ("y", metric), ("front_@x", "nothing beats it")]
        ),
    )


def _grid(context: ChartContext) -> Chart:
    target = headline_target(context.groups)
    data, metric = chart_data.grid_rows(context, target), context.groups[0].first.metric
    offered = {"time": (f"time to {target_text(metric, target)}" if target is not None else "", "blues", LOG),
               "quality": (metric, "greens", LINEAR), "train_s": ("training", "blues", LOG),
               "memory": ("memory", "oranges", LOG)}  # fmt: skip
    return Chart(
        "grid",
        "Every setting that was tried",
        "Darker is more. Empty: not tried, failed, or never got there.",
        charts.grid(list(dict.fromkeys(row["row"] for row in data)), _columns(data)),
        {"grid": data},
        [
            ChartChoice(
                label, {"v_text": f"{name}_text", "v_title": label, "v_scale": scale, "scheme": scheme, "v": name}
            )
            for name, (label, scheme, scale) in offered.items()
            if _any(data, name)
        ],
        ChartTable("grid", [("row", "setting")], across=("column", "@v_text")),
        listed="row",
    )


def _columns(data: Rows) -> list[str]:
    """The headings of the grid: engines as they are ranked, each with its workers in order."""
    engines = list(dict.fromkeys(row["engine"] for row in data))
    order = sorted(data, key=lambda row: (engines.index(row["engine"]), row["workers"], row["column"]))
    return list(dict.fromkeys(row["column"] for row in order))


def _resources(context: ChartContext) -> Chart:
    data = chart_data.resource_rows(context)
    return Chart(
        "resources",
        "What a trial used while it ran",
        _cut("One run of a setting, role by role.", context, chart_data.SHOWN),
        charts.resources(),
        {"resources": data, "used": chart_data.used_rows(data)},
        [
            ChartChoice(label, {"y_title": title, "y": name})
            for name, (label, title) in USED.items()
            if _any(data, name)
        ],
        ChartTable("used", [("role", "role"), ("@y", "@y_title, median"), ("most_@y", "at most")]),
        pick="name",
    )
