"""What the loss of a process costs a training."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Losses:
    """How often a training began again, and what that cost it."""

    def __init__(self) -> None:
        self.count = 0
        self._figures = dict.fromkeys(("detection_s", "recovery_s", "steps_redone"), 0.0)
        self._noticed: float | None = None

    def begin(self, heard: float) -> None:
        """Something is lost; the last sign of life came at that time."""
        now = time.monotonic()
        self._figures["detection_s"] += now - heard
        self._noticed = self._noticed or now  # where a recovery is itself lost, it goes on
        self.count += 1

    def redo(self, steps: int) -> None:
        """So many steps that had been made must be made again."""
        self._figures["steps_redone"] += max(0, steps)

    def over(self, now: float) -> None:
        """A step has been made; the first one after a loss ends the recovery."""
        if self._noticed:
            self._figures["recovery_s"] += now - self._noticed
            self._noticed = None

    def counts(self, told: Mapping[str, float]) -> dict[str, float]:
        """The figures for the record, added to those that the leader told of its own losses."""
        if not self.count:
            return dict(told)
        own = {"restarts": float(self.count), **self._figures}
        return {name: told.get(name, 0.0) + own.get(name, 0.0) for name in {**told, **own}}
