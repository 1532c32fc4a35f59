"""When a running candidate is given up: once it is too late to win, or when it is behind halfway."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainoff.runner.events import Story

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
