"""How well a candidate did: by its time to the target, and where it never got there, by how close it came."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record
from trainoff.tune.pruning import GIVEN_UP

NEVER = 1e6  # later than any training that reached its target
FAILED = 1e9


def time_of(record: Record, target: float) -> float | None:
    """Seconds of training to the target; None where it was not reached, or something went wrong.

    A candidate that was given up may have been there before: that shows only when its snapshots are evaluated.
    """
    right = record.equivalence.get("verdict") != "wrong"
    given_up = record.status == "timeout" and str(record.reason).startswith(GIVEN_UP)
    return record.time_to_target.get(str(target)) if record.status == "ok" or (given_up and right) else None


def badness(record: Record, target: float) -> float:
    """A number to sort by: seconds to the target, then how much was lacking to it, then failure."""
    reached = time_of(record, target)
    if reached is not None:
        return reached
    value = record.test_metrics.get(record.metric)
    if record.status not in ("ok", "timeout") or value is None:
        return FAILED
    metric = METRICS[record.metric]
    lacking = metric.badness(value) - metric.badness(target)
    return NEVER * (1 + min(max(lacking, 0.0), 1.0))


def goal(targets: Sequence[float], recipe: Record, asked: float | None) -> float:
    """What an engine is tuned for: the hardest target that its recipe reaches for sure, or else the easiest.

    A target that the recipe just touches is reached with one seed and missed with the next.
    """
    if asked is not None:
        return asked
    hardest_first = sorted(targets, key=METRICS[recipe.metric].badness)
    return next((each for each in hardest_first if _clearly(recipe, each)), hardest_first[-1])


def _clearly(record: Record, target: float) -> bool:
    """Whether a target was reached, and passed in the end by more than the rows it is measured on are worth."""
    value = record.test_metrics.get(record.metric)
    if time_of(record, target) is None or value is None:
        return False
    metric, rows = METRICS[record.metric], record.dataset.get("test_rows")
    share = metric.name in ("accuracy", "error")
    error = math.sqrt(target * (1 - target) / rows) if share and rows else 0.0
    return metric.badness(value) <= metric.badness(target) - error


def check_targets(workload: str, targets: Sequence[float], asked: float | None) -> None:
    """A search must know what it is for."""
    if not targets:
        raise TrainoffError(f"{workload} has no targets, so nothing can be tuned for; add targets = [...] to the study")
    if asked is not None and asked not in targets:
        known = ", ".join(f"{each:g}" for each in targets)
        raise TrainoffError(f"--target {asked:g}: it is not among the study's targets; they are {known}")
