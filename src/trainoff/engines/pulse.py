"""The signs of life of a training that goes on elsewhere, and how long to wait for the next one."""

from __future__ import annotations

import time

FIRST_S = 60.0  # how long the first step may take
STUCK_S = 15.0  # without a step the training is given up after this time ...
STUCK_TIMES = 20  # ... or after so many times the longest that a sign of life has taken, if that is longer


class Lost(Exception):
    """A process is gone without which the training cannot go on."""


class Stuck(Lost):
    """All processes live, but no step has been made for long."""


class Pulse:
    """Knows when a step was last heard of."""

    def __init__(self) -> None:
        self.step, self.heard = 0, time.monotonic()
        self.beating = False  # whether steps are expected
        self._longest = 0.0

    def await_beat(self) -> None:
        """Something is about to begin: count the time from here."""
        self.heard = time.monotonic()

    def feel(self, step: int) -> bool:
        """So many steps are done; says whether that is a sign of life, and not the same number again."""
        now = time.monotonic()
        if step == self.step:
            return False
        self._longest = max(self._longest, now - self.heard)
        self.step, self.heard = step, now
        return True

    def check(self) -> None:
        """Raise if steps are expected and nothing has been heard for too long."""
        patience = max(STUCK_S, STUCK_TIMES * self._longest) if self._longest else FIRST_S
        if self.beating and time.monotonic() - self.heard > patience:
            raise Stuck(f"no step was made for {patience:.0f} s after step {self.step}")
