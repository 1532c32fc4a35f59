"""The base class of the charts, the settings and records that a chart shows, and the axes that several charts have."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.analysis import SettingGroup, headline_target
from trainoff.errors import TrainoffError
from trainoff.records import Record, series_of
from trainoff.report.html.style import Spec, Style, setting_styles

if TYPE_CHECKING:
    import polars

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
PLACEHOLDER = re.compile("@([a-z_]+)")
LEAST_ERROR = 1e-4
LOG, LINEAR = "log", "linear"


@dataclass(frozen=True)
class ChartChoice:
    """One of the views that a chart offers: the values of the specification's placeholders, and the rows it shows."""

    label: str
    placeholders: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)  # rows with these values


@dataclass(frozen=True)
class ChartTable:
    """The figures of a chart as a table: a dataset, and its columns with their headings.

    `across` is a column whose values become headings, and the column of the figures below them.
    """

    data: str
    columns: Sequence[tuple[str, str]]
    only: Mapping[str, Any] = field(default_factory=dict)
    across: tuple[str, str] | None = None


@dataclass(frozen=True)
class SeriesReader:
    """Reads the series of records in a folder, and collects the errors of damaged ones: the page leaves them out."""

    folder: Path
    damaged: list[str] = field(default_factory=list)

    def read(self, record: Record, name: str) -> polars.DataFrame | None:
        """Return a series of a record; None if it has none or cannot be read."""
        try:
            return series_of(self.folder, record, name)
        except TrainoffError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return None


@dataclass(frozen=True)
class ChartContext:
    """The settings of one workload, the best first, the reader of their series, and the styles of the engines."""

    groups: Sequence[SettingGroup]
    series: SeriesReader
    engine_styles: Sequence[Style] = ()

    @property
    def first(self) -> Record:
        return self.groups[0].first

    @cached_property
    def runs(self) -> list[tuple[SettingGroup, Record]]:
        return [(group, record) for group in self.groups for record in group.records]

    @cached_property
    def alike(self) -> bool:
        """Whether all settings have the same engine, mode and workers, so that only parameters distinguish them."""
        return len({(group.first.engine, group.first.mode, group.first.workers) for group in self.groups}) == 1

    @cached_property
    def setting_styles(self) -> list[Style]:
        """A style per setting where settings differ in nothing else; empty otherwise."""
        return setting_styles([self.name(group) for group in self.groups]) if self.alike else []

    @property
    def styles(self) -> Sequence[Style]:
        return self.setting_styles or self.engine_styles

    @cached_property
    def priced(self) -> bool:
        """Whether every trial has a price; otherwise no chart shows money."""
        return all(record.usd_per_hour is not None for _, record in self.runs)

    def name(self, group: SettingGroup) -> str:
        """Return the name of a setting in the charts."""
        return group.setting or group.name if self.alike else group.name

    def columns(self, group: SettingGroup) -> Row:
        """Return the columns that the rows of every chart have."""
        first = group.first
        return {"name": self.name(group), "engine": first.engine, "mode": first.mode, "workers": first.workers}

    def usd(self, record: Record, spent_s: float | None) -> float | None:
        """Return what some seconds of a trial's nodes cost."""
        return short(record.usd(spent_s)) if self.priced else None


class Chart(ABC):
    """A chart of one workload: its rows, its Vega-Lite specification, the choices it offers, and its table.

    A subclass sets the attributes below in its body or in `__init__`. Texts of the specification and of the table's
    columns may have placeholders such as `@x`, which the selected choice fills in.
    """

    name: ClassVar[str]  # in links, in the names of pictures, and for `Results.plot`
    contents: ClassVar[str]  # its entry in the page's table of contents
    pick: ClassVar[str | None] = None  # a column: the chart shows the rows of one of its values, which the reader picks
    listed: ClassVar[str | None] = None  # a column: the chart has a line for each of its values
    most: ClassVar[int | None] = None  # settings shown
    title: str
    about: str  # the caption: what the chart shows, also for readers who do not see it
    data: Mapping[str, Rows]  # the datasets of the specification
    choices: Sequence[ChartChoice]  # the default first; without any the chart is left out
    table: ChartTable

    def __init__(self, context: ChartContext) -> None:
        self.context = context
        self.groups = context.groups[: self.most]
        self.metric = context.first.metric
        self.target = headline_target(context.groups)

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """The Vega-Lite specification, without data and with placeholders."""

    @property
    def picks(self) -> list[str]:
        """The values that can be picked, the default first."""
        rows = (row for data in self.data.values() for row in data)
        return list(dict.fromkeys(str(row[self.pick]) for row in rows)) if self.pick else []

    def vega_lite(self, choice: ChartChoice | None = None) -> Spec:
        """Return the whole specification with its data, for any program that reads Vega-Lite."""
        choice = choice or self.choices[0]
        only = ({**choice.only, **({self.pick: self.picks[0]} if self.pick else {})}).items()
        datasets = {
            name: [row for row in rows if all(row.get(key, value) == value for key, value in only)]
            for name, rows in self.data.items()
        }
        spec: Spec = fill(self.spec, choice.placeholders)
        return {"$schema": SCHEMA, **spec, "datasets": datasets}

    def limited(self, about: str) -> str:
        """Return the caption, with a note if the chart leaves settings out."""
        total = len(self.context.groups)
        return about if total == len(self.groups) else f"{about} The best {len(self.groups)} of {total} settings."


def fill(part: Any, placeholders: Mapping[str, str]) -> Any:
    """Return a specification, or a part of one, with its placeholders filled in."""
    if isinstance(part, str):
        return PLACEHOLDER.sub(lambda match: placeholders.get(match[1], match[0]), part)
    if isinstance(part, dict):
        data = {key: one for key, one in part.items() if key in ("domain", "sort") and isinstance(one, list)}
        return {key: data[key] if key in data else fill(one, placeholders) for key, one in part.items()}
    return [fill(one, placeholders) for one in part] if isinstance(part, list) else part


def short(value: float | None) -> float | None:
    """Return a figure with as many digits as a chart can show; None for NaN and infinity."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


def with_error(row: Row) -> Row:
    """Return a row with `error` beside `y`, for the axis that spreads accuracies near 1."""
    y = row["y"]
    return {**row, "error": None if y is None else short(max(1 - y, LEAST_ERROR))}


def known(rows: Rows, name: str) -> bool:
    """Return whether any row has a figure of that name."""
    return any(row.get(name) is not None for row in rows)


def metric_title(metric: str) -> str:
    """Return a metric as the beginning of a title."""
    return metric.upper() if metric == "auc" else metric.capitalize()


AXES = {  # what quality can be drawn against: label of the choice, title of the axis
    "train_s": ("seconds", "seconds of training"),
    "samples": ("samples", "samples seen"),
    "core_s": ("core-seconds", "CPU seconds of training"),
    "cpu_s": ("core-seconds", "CPU seconds of the whole trial"),
    "memory": ("memory", "peak memory in bytes"),
    "bytes": ("bytes", "bytes over the network"),
    "usd": ("money", "US dollars"),
}


def axis_choices(rows: Rows, names: Sequence[str]) -> list[ChartChoice]:
    """Return a choice for each of these axes for which there are figures."""
    return [
        ChartChoice(AXES[name][0], {"x_title": AXES[name][1], "x_scale": LOG, "x": name})
        for name in names
        if any(row.get(name) for row in rows)
    ]


def y_choices(rows: Rows, axes: Mapping[str, tuple[str, str]]) -> list[ChartChoice]:
    """Return a choice for each of these figures that is known, given its label and the title of its axis."""
    return [
        ChartChoice(label, {"y_title": title, "y": name}) for name, (label, title) in axes.items() if known(rows, name)
    ]


def layer(data: str, mark: Spec, encoding: Spec, only: str | None = None) -> Spec:
    """Return a layer of a specification; `only` is a Vega expression that filters the rows."""
    transform = {"transform": [{"filter": only}]} if only else {}
    return {"data": {"name": data}, **transform, "mark": mark, "encoding": encoding}


# As many decimal places as distinguish the best from a perfect one, and a tick from the next; the same on a whole axis.
LEAST, SPAN = "domain('y')[0]", "(domain('y')[1] - domain('y')[0])"
PLACES = f"clamp(ceil(-log(min({LEAST}, {SPAN} / 4)) / LN10), 2, 4)"
# Grid lines without a label, on a logarithmic axis, are fainter.
FAINT = {"gridOpacity": {"condition": {"test": "datum.label !== ''", "value": 1}, "value": 0.4}}
X_SCALE = {"type": "@x_scale", "nice": False, "padding": 12}


def x_axis() -> Spec:
    """Return the x-axis of the figure that is chosen on the page."""
    in_bytes = "indexof(['memory', 'bytes'], '@x') >= 0"  # 400M instead of 400,000,000
    axis = {**FAINT, "labelExpr": f"datum.label && {in_bytes} ? format(datum.value, '~s') : datum.label"}
    return {"field": "@x", "type": "quantitative", "title": "@x_title", "scale": X_SCALE, "axis": axis}


def quality_axis(metric: str) -> Spec:
    """Return an axis of quality; on that of accuracy every halving of the error takes the same space."""
    if metric != "accuracy":
        return {"field": "y", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    axis = {"tickCount": 6, "labelExpr": f"format(1 - datum.value, '.' + {PLACES} + 'f')"}
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8}
    return {"field": "error", "type": "quantitative", "title": metric, "scale": scale, "axis": axis}
