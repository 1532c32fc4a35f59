"""The charts, as Vega-Lite: what is drawn of which columns. The page, the pictures and notebooks share them.

A specification has holes such as `@x`, filled by the choices that a chart offers ("against seconds, or samples?").
The lists under `domain` and `sort` hold data, names that may look like holes, and are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainoff.report.page.encode import LABELS, LEGEND, Spec, colour, dash, shape
from trainoff.report.page.look import PHASES, Look

Rows = Sequence[Mapping[str, Any]]

HOLE = re.compile("@([a-z_]+)")
STEP = {"step": 21}  # a line of a list


@dataclass(frozen=True)
class Choice:
    """One thing that a chart can show: what fills the holes, and which rows count."""

    label: str
    holes: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)  # rows with these values


@dataclass(frozen=True)
class Chart:
    """A picture of some rows: its specification, its datasets, and the choices it offers, the first one first."""

    name: str
    title: str
    about: str  # what is to be seen here, for those who read and those who cannot see it
    spec: Spec
    data: Mapping[str, Rows]
    choices: Sequence[Choice]
    pick: str | None = None  # the column of which one value is shown at a time
    listed: str | None = None  # the column that has a line for each of its values

    @property
    def picks(self) -> list[str]:
        """What can be picked, the first one first."""
        rows = (row for data in self.data.values() for row in data)
        return list(dict.fromkeys(str(row[self.pick]) for row in rows)) if self.pick else []

    def drawn(self, choice: Choice | None = None) -> Spec:
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


def tooltip(*fields: str) -> list[Spec]:
    """What is told of a mark when somebody points at it."""
    return [{"field": name, "title": name.replace("_", " ")} for name in fields]


def measure(hole: str) -> Spec:
    """An axis of a figure that is chosen on the page."""
    scale = {"type": f"@{hole}_scale", "nice": False, "padding": 12}
    of_bytes = f"indexof(['memory', 'bytes'], '@{hole}') >= 0"  # 400M instead of 400,000,000
    axis = {"labelExpr": f"datum.label && {of_bytes} ? format(datum.value, '~s') : datum.label"}
    return {"field": f"@{hole}", "type": "quantitative", "title": f"@{hole}_title", "scale": scale, "axis": axis}


def quality(metric: str) -> Spec:
    """An axis of quality; accuracies near 1 are spread out: every halving of the error takes as much room."""
    if metric != "accuracy":
        return {"field": "y", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    axis = {"tickCount": 6, "labelExpr": "format(1 - datum.value, '.4~f')"}
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8}
    return {"field": "error", "type": "quantitative", "title": metric, "scale": scale, "axis": axis}


def curve(looks: Sequence[Look], metric: str) -> Spec:
    """Quality against what it took: a line per run."""
    y = quality(metric)
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
            "tooltip": tooltip("name", "seed", "status", "samples", "train_s", "core_s", "y"),
        },
    }
    goals = {
        "data": {"name": "targets"},
        "mark": {"type": "rule", "strokeDash": [2, 4], "opacity": 0.6},
        "encoding": {"y": y},
    }
    return {"layer": [goals, lines, ends]}


def target(looks: Sequence[Look], order: Sequence[str]) -> Spec:
    """Time to a target: every repetition as a mark, the median and its interval; runs that never came there hollow."""
    y = {"field": "name", "type": "nominal", "sort": list(order), "axis": LABELS}
    x = {
        "field": "s",
        "type": "quantitative",
        "title": "seconds of training",
        "scale": {"type": "log", "nice": False, "padding": 12},
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
    return {"height": STEP, "layer": [spread, middle, runs]}


def phases(order: Sequence[str]) -> Spec:
    """Where the time went: a bar per setting, in the order of the phases."""
    scale = {"domain": list(PHASES), "range": list(PHASES.values())}
    return {
        "height": STEP,
        "data": {"name": "phases"},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": list(order), "axis": LABELS},
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "@stack"},
            "color": {"field": "phase", "scale": scale, "sort": list(PHASES), "legend": LEGEND},
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
            "opacity": {"condition": {"test": "datum['front_@x']", "value": 1}, "value": 0.45},
            "tooltip": tooltip("name", "y", "@x"),
        },
    }
    return {"data": {"name": "pareto"}, "transform": [{"filter": "isValid(datum['@x'])"}], "layer": [front, points]}


def grid(rows: Sequence[str], columns: Sequence[str]) -> Spec:
    """Every engine in every setting that was tried: darker is more."""
    place = {
        "y": {"field": "row", "type": "nominal", "sort": list(rows), "axis": LABELS},
        "x": {"field": "column", "type": "nominal", "sort": list(columns), "title": None,
              "axis": {"orient": "top", "labelAngle": -40, "labelLimit": 200}},
    }  # fmt: skip
    cells = {
        "mark": {"type": "rect"},
        "encoding": {
            **place,
            "color": {"field": "@v", "type": "quantitative", "legend": None,
                      "scale": {"scheme": {"name": "@scheme", "extent": [0.05, 0.6]}, "type": "@v_scale"}},
            "tooltip": tooltip("row", "column", "@v"),
        },
    }  # fmt: skip
    figures = {
        "mark": {"type": "text", "fontSize": 10},
        "encoding": {**place, "text": {"field": "@v_text"}, "color": {"value": "#111"}},
    }
    return {
        "height": STEP,
        "data": {"name": "grid"},
        "transform": [{"filter": "isValid(datum['@v'])"}],
        "layer": [cells, figures],
    }
