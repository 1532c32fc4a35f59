"""The evaluator: turns a trial's snapshots into its curve, off the clock, the same way for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.data import Data
from trainoff.models import Model, Weights, evaluate, unflatten
from trainoff.runner.events import Event, Story


def read_snapshot(event: Event, folder: Path, model: Model) -> Weights:
    """The weights of one snapshot, as the engine handed them over."""
    return unflatten(model, np.fromfile(folder / event["file"], np.float32, model.parameters))


def curve(story: Story, folder: Path, model: Model, data: Data) -> list[dict[str, Any]]:
    """A row per snapshot: where training stood, and how good the network was on the test set."""
    cpu = story.cpu_at()
    rows = []
    for event in story.snapshots:
        quality = evaluate(model, read_snapshot(event, folder, model), data.x_test, data.y_test)
        rows.append(
            {
                "step": event["step"],
                "samples_seen": event["samples_seen"],
                "train_s": event["train_s"],
                "wall_s": event["t"] - story.start,
                "core_s": _core_s(cpu, story.train_start or event["t"], event["t"]),
                "objective": event["loss"],
                **quality,
            }
        )
    return rows


def objectives(story: Story) -> list[dict[str, Any]]:
    """A row per training loss that was told only afterwards; of such a step nothing else is known."""
    told = ("step", "samples_seen", "train_s")
    return [{**{name: event[name] for name in told}, "objective": event["loss"]} for event in story.objectives]


def _core_s(cpu: Sequence[tuple[float, float]], start: float, now: float) -> float | None:
    """CPU seconds of all processes since training began, between samples by interpolation."""
    if not cpu:
        return None
    times, used = zip(*cpu, strict=True)
    return float(np.interp(now, times, used) - np.interp(start, times, used))
