"""The style of the charts: a fixed colour and shape per engine, and the parts of a specification that they share.

Where a workload has only one engine, each of its settings gets a style instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

# Every colour has a contrast of at least 3 on white and on the dark background; shapes and dashes help where colours
# do not.
COLOURS = {
    "numpy": "#7d8590",
    "sklearn": "#d9730d",
    "tensorflow": "#c8483b",
    "torch": "#3b78c4",
    "jax": "#c2569b",
    "torch-ddp": "#28a0c1",
    "ray-torch": "#7a63c9",
    "dask-average": "#9a6b45",
    "spark-average": "#2a9d63",
    "spark-mllib": "#8f8a1f",
    "tf-allreduce": "#dc776c",
    "tf-ps": "#a93f53",
    "tf-on-spark": "#c5861f",
    "spark-sklearn": "#6da256",
    "spark-torch": "#17806a",
    "dask-sklearn": "#bb8b56",
    "dask-torch": "#b0522d",
}
PLUGIN_COLOURS = (
    "#5f6caf", "#b5478e", "#4f8f2f", "#a8741a", "#3f93a8", "#d05c5c", "#6d5a8c", "#2f7d5b", "#9c5fd0"
)  # fmt: skip
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
PHASES = {
    "import": "#b8bec6",
    "cluster_start": "#8d96a0",
    "data_load": "#d8b365",
    "ship": "#b07d2b",
    "compile": "#9e7cc1",
    "train": "#3b78c4",
    "test": "#2a9d63",
    "teardown": "#d98880",
}


@dataclass(frozen=True)
class Style:
    """The colour and the shape of an engine, or of a setting."""

    name: str
    colour: str
    shape: str
    field: str = "engine"  # the column of a chart's rows that holds the name


def default_style(engine: str) -> Style:
    """Return the style of an engine; a plug-in's follows from its name, in a colour that no built-in engine has."""
    return next(_candidates(engine))


def _candidates(engine: str) -> Iterator[Style]:
    """Yield the styles that an engine may have, its default first: for a plug-in every pair of colour and shape."""
    if engine in COLOURS:
        yield Style(engine, COLOURS[engine], SHAPES[list(COLOURS).index(engine) % len(SHAPES)])
        return
    first = zlib.crc32(engine.encode())
    for index in range(first, first + len(PLUGIN_COLOURS) * len(SHAPES)):
        shape, colour = divmod(index, len(PLUGIN_COLOURS))
        yield Style(engine, PLUGIN_COLOURS[colour], SHAPES[shape % len(SHAPES)])


def engine_styles(engines: Iterable[str]) -> list[Style]:
    """Return a style per engine, in the order of `COLOURS`, plug-ins last.

    If the defaults of two plug-ins are the same, the first by name keeps it, and the next takes one that is free.
    """
    order = {name: index for index, name in enumerate(COLOURS)}
    styles: list[Style] = []
    for engine in sorted(set(engines), key=lambda name: (order.get(name, len(order)), name)):
        taken = {(style.colour, style.shape) for style in styles}
        free = (style for style in _candidates(engine) if (style.colour, style.shape) not in taken)
        styles.append(next(free, default_style(engine)))
    return styles


def setting_styles(names: Sequence[str]) -> list[Style]:
    """Return a style per setting; none if there are too many settings to be distinguished by colour."""
    if not 1 < len(names) <= len(PLUGIN_COLOURS):
        return []
    pairs = zip(names, PLUGIN_COLOURS, cycle(SHAPES), strict=False)
    return [Style(name, colour, shape, "name") for name, colour, shape in pairs]


Spec = dict[str, Any]
LEGEND = {"orient": "bottom", "columns": 5, "title": None}
LABELS = {"labelLimit": 280, "title": None}
IN_TWO_LINES = "indexof(datum.label, ' with ') > 0"  # a setting in two lines: the engine, and what sets it apart
LIFT = {"condition": {"test": IN_TWO_LINES, "value": -7}, "value": 0}
LISTED = {**LABELS, "labelExpr": "split(datum.label, ' with ')", "labelOffset": LIFT}
ONE_LINE, TWO_LINES = 21, 32  # height of a list's entry in pixels
TITLES = {"train_s": "seconds of training", "core_s": "CPU seconds", "s": "seconds", "samples": "samples seen"}
DASHES = {  # by mode, and their names in a sentence
    "single": ([1, 0], "solid for"),
    "sync": ([8, 2], "long dashes for"),
    "local": ([4, 2], "short dashes for"),
    "async": ([2, 2], "dots for"),
    "model-parallel": ([8, 2, 2, 2], "dots and dashes for"),
}


def colour(styles: Sequence[Style], legend: bool = True) -> Spec:
    """Encode engines, or settings, by colour."""
    return _encoding(styles, [style.colour for style in styles], legend)


def shape(styles: Sequence[Style]) -> Spec:
    """Encode engines, or settings, by shape."""
    return _encoding(styles, [style.shape for style in styles])


def _encoding(styles: Sequence[Style], values: Sequence[str], with_legend: bool = True) -> Spec:
    field = styles[0].field
    legend = LEGEND if field == "engine" else {**LEGEND, **LABELS, "columns": 2}
    scale = {"domain": [style.name for style in styles], "range": list(values)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend if with_legend else None}


def dash() -> Spec:
    """Encode modes by dashes."""
    scale = {"domain": list(DASHES), "range": [pattern for pattern, _ in DASHES.values()]}
    return {"field": "mode", "type": "nominal", "scale": scale, "legend": None}


def step(names: Sequence[str]) -> Spec:
    """Return the height of a list: one or two lines per name."""
    return {"step": TWO_LINES if any(" with " in name for name in names) else ONE_LINE}


def tooltip(*fields: str, **titles: str) -> list[Spec]:
    """Return the fields of a tooltip; a figure that is chosen on the page has its axis's title."""
    return [{"field": name, "title": titles.get(name) or _title(name)} for name in fields]


def _title(field: str) -> str:
    return f"{field}_title" if field.startswith("@") else TITLES.get(field, field.replace("_", " "))
