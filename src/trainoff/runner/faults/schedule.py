"""When a fault is done, and when it is over: what the conductor tells the warden, and at which moment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainoff.runner.events import Story
from trainoff.runner.faults.injector import FAULT, HEAL
from trainoff.study import Trial
from trainoff.study.fault import LAST, moment

AFTER = ("test", "teardown")  # in these phases the training is over


def fault_of(trial: Trial) -> dict[str, Any] | None:
    """What is to be done to a node of the trial, by its number; None if nothing is."""
    asked = trial.params.get("fault")
    if not asked:
        return None
    return {**asked, "node": trial.workers - 1 if asked["node"] == LAST else asked["node"]}


class Cue:
    """Follows a trial's story, and says each word to the warden once, as soon as it is time."""

    def __init__(self, fault: Mapping[str, Any] | None) -> None:
        self._at = moment(fault["at"]) if fault else None
        self._done = False

    def words(self, story: Story, now: float) -> Iterator[str]:
        """What to say now. A fault that lasts is over with the training."""
        if self._at is None:
            return
        if not self._done and self.wait(story, now) <= 0:
            self._done = True
            yield FAULT
        if self._done and story.phase in AFTER:
            self._at = None
            yield HEAL

    def wait(self, story: Story, now: float) -> float:
        """The seconds until the fault is due: at most 0 if it is, infinite where only progress can tell."""
        at = self._at
        if at is None or self._done or story.phase != "train" or story.train_start is None:
            return math.inf
        if at.second is not None:
            return at.second - (now - story.train_start - story.paused_s)
        if at.step is not None:
            return 0.0 if story.step >= at.step else math.inf
        reached = at.share == 0 or (story.expected and story.samples_seen >= (at.share or 0) * story.expected)
        return 0.0 if reached else math.inf
