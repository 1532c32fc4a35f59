"""Averaged weights: every worker makes tau steps of its own, then all go on from the average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainoff.engines.contract import Knob

if TYPE_CHECKING:
    from trainoff.study import Trial

TAU = Knob(int, 10, "steps that every worker makes before the weights are averaged; 1 in the mode sync", minimum=1)


def differs(trial: Trial, workers: int) -> str | None:
    """Why averaging the weights of so many workers is not what the reference does, or None where it is."""
    if workers == 1:
        return None
    if trial.params["tau"] > 1:
        return f"every worker makes {trial.params['tau']} steps of its own before the weights are averaged"
    if trial.params["optimizer"] != "sgd":
        return f"every worker keeps the memory of {trial.params['optimizer']} for its own gradients"
    return None
