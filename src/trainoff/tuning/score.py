"""How well a candidate did: by its time to the target, and where it never got there, by how close it came."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record, folder_of
from trainoff.runner.events import Story

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


GIVEN_UP = "given up after"  # how the reason of such a record begins
LATE = 1.25  # times the best time to target: who has not reached it by now cannot win
SHORT_S = 1.0  # of training: to end it sooner saves less than it takes to start the next
HALFWAY = 0.5  # of the best time to target: from here on it must keep up
SLACK = 1.5  # times the median loss: the loss of one batch is a rough guess
ENOUGH = 4  # curves, to say what keeping up is

Curve = Sequence[tuple[float, float]]  # seconds of training, and the training loss then


@dataclass(frozen=True)
class Bar:
    """What a candidate is measured by while it runs: the best time so far and the curves of those before it."""

    best_s: float
    curves: Sequence[Curve] = ()

    def give_up(self, story: Story) -> str | None:
        """Why a training need not go on; None as long as it may still win."""
        if story.train_start is None or story.train_end is not None:
            return None
        trained = time.monotonic() - story.train_start - story.paused_s
        if trained < SHORT_S:
            return None
        if trained > LATE * self.best_s:
            return f"{GIVEN_UP} {trained:.3g} s of training: another candidate needed {self.best_s:.3g} s in all"
        looks = [(event["train_s"], event["loss"]) for event in story.snapshots if event["loss"] is not None]
        return self.behind(*looks[-1]) if looks else None

    def behind(self, trained: float, loss: float) -> str | None:
        """Why a loss at that time is hopeless: far above the median of what the others had by then."""
        others = [found for curve in self.curves if (found := at(curve, trained)) is not None]
        if trained < HALFWAY * self.best_s or len(others) < ENOUGH:
            return None
        median = statistics.median(others)
        if loss <= SLACK * median:
            return None
        return f"{GIVEN_UP} {trained:.3g} s of training: its loss was {loss:.3g}, and {median:.3g} is usual by then"


def at(curve: Curve, trained: float) -> float | None:
    """The loss that a training had at a time, its last one before; None before the first."""
    before = [loss for when, loss in curve if when <= trained]
    return before[-1] if before else None


def bar(best_s: float | None, curves: Sequence[Curve]) -> Callable[[Story], str | None] | None:
    """The rule for the next candidate; none while nobody has reached the target."""
    return None if best_s is None else Bar(best_s, curves).give_up


def losses(folder: Path, record: Record) -> Curve:
    """Seconds of training and the loss then, at every snapshot that has one; nothing where there is no curve."""
    import polars

    path = folder_of(folder, record) / "curve.parquet"
    if not path.exists():
        return []
    frame = polars.read_parquet(path)
    if not {"train_s", "objective"} <= set(frame.columns):
        return []
    known = frame.select("train_s", "objective").drop_nulls().sort("train_s")
    return [(float(when), float(loss)) for when, loss in known.iter_rows()]
