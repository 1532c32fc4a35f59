"""What tuning is asked for, and what it says while it works."""

from __future__ import annotations

from dataclasses import dataclass

from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.tuning.search import Candidate

ROUNDS = 5  # of a race: fewer give no verdict


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    minutes: float
    target: float | None = None  # what to tune for; by default the hardest that an engine's recipe reaches
    candidates: int | None = None  # for each engine at most
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise TrainoffError(f"--minutes {self.minutes:g}: expected a number of minutes above 0")
        if self.candidates is not None and self.candidates < 1:
            raise TrainoffError(f"--candidates {self.candidates}: expected at least 1, which is the recipe")
        if self.rounds < 0:
            raise TrainoffError(f"--rounds {self.rounds}: expected 0 or more; {ROUNDS} give a verdict")


@dataclass(frozen=True)
class Step:
    """Where tuning stands: what is about to run, or has just run."""

    engine: str
    what: str  # "the recipe", "candidate 7", "race 2 of 5"
    candidate: Candidate
    record: Record | None = None  # None: it is about to run
    target: float | None = None
    best: float | None = None  # the shortest time to target of earlier candidates
    left: float = 0.0  # seconds of the whole budget
