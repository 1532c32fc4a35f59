"""Looks as the chart library wants them told: which column, which colours, which legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainoff.report.page.look import Look

Spec = dict[str, Any]
LEGEND = {"orient": "bottom", "columns": 5, "title": None}
LABELS = {"labelLimit": 280, "title": None}
DASHES = {"single": [1, 0], "sync": [8, 2], "local": [4, 2], "async": [2, 2], "model-parallel": [8, 2, 2, 2]}


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


def dash() -> Spec:
    """Modes by their dashes."""
    scale = {"domain": list(DASHES), "range": list(DASHES.values())}
    return {"field": "mode", "type": "nominal", "scale": scale, "legend": None}
