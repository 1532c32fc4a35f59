"""Where a fault was done on a learning curve, and where it was healed: a mark each, which tells what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import Any

from trainoff.analysis.format import fault, seconds
from trainoff.report.html.charts import Rows
from trainoff.report.html.style import Look
from trainoff.report.page.axes import measure, quality
from trainoff.report.page.encode import Spec, colour, tooltip
from trainoff.report.page.series import short

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
    told = {"fault": fault(done), "noticed after": noticed, "back after": back, "state": done["state"]}
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
