"""Looks as the chart library wants them told: which column, which colours, which legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainoff.report.html.style import Look

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
