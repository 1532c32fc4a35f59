"""The charts, as Vega-Lite: what is drawn of which columns. The page, the pictures and notebooks share them.

A specification has holes such as `@x`, filled by the choices that a chart offers ("against seconds, or samples?").
The lists under `domain` and `sort` hold data, names that may look like holes, and are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainoff.report.html.style import PHASES, Look
from trainoff.report.page.axes import FAINT, measure, quality
from trainoff.report.page.encode import LEGEND, LISTED, Spec, colour, dash, shape, step, tooltip

Rows = Sequence[Mapping[str, Any]]

HOLE = re.compile("@([a-z_]+)")
WORDS = {"curve": "learning", "target": "time to target", "scaling": "workers", "pareto": "costs", "grid": "settings"}
NEAR = 2000  # points of curves that can be pointed at; with more, only their ends
LEVEL = 5  # columns whose headings stand level; with more they are tilted


@dataclass(frozen=True)
class Choice:
    """One thing that a chart can show: what fills the holes, and which rows count."""

    label: str
    holes: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)  # rows with these values


@dataclass(frozen=True)
class Table:
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
    choices: Sequence[Choice]
    table: Table
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
