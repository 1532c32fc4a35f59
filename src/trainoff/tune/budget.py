"""The minutes that tuning may take, shared evenly among the engines that are still to come."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainoff.analysis.format import about
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.runner.control_kernel import seconds as control_s

LATER_SHARE = 0.6  # of an engine's time at most is kept for the play-off and the race
MARGIN = 1.25  # trials differ in length, and those of the race are not the shortest
A_FEW = 3  # trials, the recipe's among them: with fewer there is nothing to race for
FINALISTS, PLAY_OFF = 3, 2  # who is in a play-off, and how many seeds more each of them gets


@dataclass
class Share:
    """One engine's time: for the search, and kept back for the play-off and the race."""

    seconds: float
    rounds: int
    _start: float = field(default_factory=time.monotonic)
    _spent: list[float] = field(default_factory=list)  # by trial

    @property
    def left(self) -> float:
        """Seconds of it that are left."""
        return self.seconds - (time.monotonic() - self._start)

    def book(self, record: Record, took_s: float | None = None) -> None:
        """Learn what a trial takes: as it was seen, or as an older record tells, with the control kernel beside it."""
        self._spent.append(took_s if took_s is not None else (record.cold_s or 0.0) + 2 * control_s())

    @property
    def _usual(self) -> float:
        return statistics.median(self._spent) if self._spent else 0.0

    @property
    def for_search(self) -> bool:
        """Whether one more candidate can be tried and the rest still be held; a few come before all else."""
        later = min(self._later, LATER_SHARE * self.seconds)
        return self.left - (0.0 if len(self._spent) < A_FEW else later) >= self._usual

    @property
    def for_play_off(self) -> bool:
        """Whether there is time for a play-off and a race after it."""
        return self.left >= self._later

    @property
    def _later(self) -> float:
        """What play-off and race will take, and a little more: a race that lacks its last round gives no verdict."""
        return MARGIN * (FINALISTS * PLAY_OFF + 2 * self.rounds) * self._usual

    @property
    def rounds_left(self) -> int:
        """How many rounds of a race there is time for."""
        pair = 2 * self._usual
        return min(self.rounds, max(0, round(self.left / pair))) if pair else self.rounds


@dataclass
class Budget:
    """All of the time."""

    minutes: float
    _start: float = field(default_factory=time.monotonic)

    @property
    def gone(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return max(0.0, 60 * self.minutes - self.gone)

    def share(self, engines: int, rounds: int) -> Share:
        """An equal part of what is left for each of so many engines."""
        return Share(self.left / engines, rounds)

    def check(self, guesses: Sequence[float], rounds: int) -> None:
        """Refuse what cannot even run every engine's recipe once; `guesses` are their seconds."""
        needed = sum(guesses)
        if needed <= 60 * self.minutes:
            return
        enough = (6 + FINALISTS * PLAY_OFF + 2 * rounds) * needed / 60
        recipes = "the recipe alone takes" if len(guesses) == 1 else f"the recipes of {len(guesses)} engines alone take"
        raise TrainoffError(
            f"--minutes {self.minutes:g} is too little: {recipes} about {about(needed)}; a search "
            f"with a race at its end wants --minutes {max(1, round(enough))} or more"
        )
