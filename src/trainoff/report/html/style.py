"""How engines look: every engine the same colour and mark in every picture of every study.

Where there is but one engine, its settings have a look each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

# Three times as light as the dark paper or as dark as the white one, at least; marks and dashes help where colours
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
STRANGERS = ("#5f6caf", "#b5478e", "#4f8f2f", "#a8741a", "#3f93a8", "#d05c5c", "#6d5a8c", "#2f7d5b", "#9c5fd0")
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
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
class Look:
    """The colour and the mark of an engine, or of a setting."""

    name: str
    colour: str
    mark: str
    of: str = "engine"  # the column in which a chart finds the name


def look(engine: str) -> Look:
    """An engine's look; one that did not come with trainoff gets one by its name, in a colour that no other has."""
    return next(_candidates(engine))


def _candidates(engine: str) -> Iterator[Look]:
    """The look of an engine, and those that a stranger may have instead: every pair of a colour and a mark."""
    if engine in COLOURS:
        yield Look(engine, COLOURS[engine], MARKS[list(COLOURS).index(engine) % len(MARKS)])
        return
    first = zlib.crc32(engine.encode())
    for number in range(first, first + len(STRANGERS) * len(MARKS)):
        turn, place = divmod(number, len(STRANGERS))
        yield Look(engine, STRANGERS[place], MARKS[turn % len(MARKS)])


def looks(engines: Iterable[str]) -> list[Look]:
    """The looks of some engines, each once, in the order of the list above, strangers last.

    Of strangers whose names lead to the same look, the first by its name keeps it, and the next takes one that is free.
    """
    order = {name: place for place, name in enumerate(COLOURS)}
    found: list[Look] = []
    for engine in sorted(set(engines), key=lambda name: (order.get(name, len(order)), name)):
        taken = {(one.colour, one.mark) for one in found}
        free = (one for one in _candidates(engine) if (one.colour, one.mark) not in taken)
        found.append(next(free, look(engine)))
    return found


def looks_of_settings(names: Sequence[str]) -> list[Look]:
    """A look for each of a few settings; none where they are too many to tell apart by colours."""
    if not 1 < len(names) <= len(STRANGERS):
        return []
    given = zip(names, STRANGERS, cycle(MARKS), strict=False)
    return [Look(name, colour, mark, "name") for name, colour, mark in given]


Spec = dict[str, Any]
LEGEND = {"orient": "bottom", "columns": 5, "title": None}
LABELS = {"labelLimit": 280, "title": None}
TWO = "indexof(datum.label, ' with ') > 0"  # a setting in two lines: who, and what sets it apart
LIFT = {"condition": {"test": TWO, "value": -7}, "value": 0}
LISTED = {**LABELS, "labelExpr": "split(datum.label, ' with ')", "labelOffset": LIFT}
ONE_LINE, TWO_LINES = 21, 32  # of a list, in pixels
TITLES = {"train_s": "seconds of training", "core_s": "CPU seconds", "s": "seconds", "samples": "samples seen"}
DASHES = {  # of modes, and how they are told
    "single": ([1, 0], "solid for"),
    "sync": ([8, 2], "long dashes for"),
    "local": ([4, 2], "short ones for"),
    "async": ([2, 2], "dots for"),
    "model-parallel": ([8, 2, 2, 2], "dots and dashes for"),
}


def colour(looks: Sequence[Look], legend: bool = True) -> Spec:
    """Engines, or settings, by their colours."""
    return _look(looks, [look.colour for look in looks], legend)


def shape(looks: Sequence[Look]) -> Spec:
    """Engines, or settings, by their marks."""
    return _look(looks, [look.mark for look in looks])


def _look(looks: Sequence[Look], values: Sequence[str], legend: bool = True) -> Spec:
    of = looks[0].of
    told = LEGEND if of == "engine" else {**LEGEND, **LABELS, "columns": 2}
    scale = {"domain": [look.name for look in looks], "range": list(values)}
    return {"field": of, "type": "nominal", "scale": scale, "legend": told if legend else None}


def step(names: Sequence[str]) -> Spec:
    """The height of a list: room for one line or two for each of its names."""
    return {"step": TWO_LINES if any(" with " in name for name in names) else ONE_LINE}


def tooltip(*fields: str, **titles: str) -> list[Spec]:
    """What is told of a mark when somebody points at it; a figure that is chosen on the page has its axis's title."""
    return [{"field": name, "title": titles.get(name) or _title(name)} for name in fields]


def _title(field: str) -> str:
    return f"{field}_title" if field.startswith("@") else TITLES.get(field, field.replace("_", " "))


def dash() -> Spec:
    """Modes by their dashes."""
    scale = {"domain": list(DASHES), "range": [pattern for pattern, _ in DASHES.values()]}
    return {"field": "mode", "type": "nominal", "scale": scale, "legend": None}
