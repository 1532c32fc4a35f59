"""What tuning found for each engine, how candidates are scored, and when a running one is ended."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainoff.analysis import Band, Comparison, Match, SettingGroup, compare_all, time_to
from trainoff.analysis.format import ratio_text, seconds, target_text
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record, folder_of
from trainoff.runner.events import TrialState
from trainoff.tuning.search import Candidate

WITHIN = Band(0.05)  # a recipe that is as close as this to the best that was found is good enough
NAMES = ("the challenger", "the recipe")


@dataclass(frozen=True)
class Tuned:
    """One engine after its search: every candidate, the race of the best one with the recipe, and the verdict."""

    engine: str
    target: float | None = None
    tried: Sequence[tuple[Candidate, Record]] = ()  # the recipe first
    challenger: Candidate | None = None  # the best of all that are not the recipe
    race: Sequence[tuple[Record, Record]] = ()  # challenger and recipe with the same seed
    why_not: str | None = None  # why there was no search
    race_lacks: str | None = None  # why the race is short, or missing
    comparison: Comparison | None = None  # of the race

    @property
    def reached(self) -> bool:
        """Whether anybody got to the target."""
        return self.target is not None and any(time_of(record, self.target) is not None for _, record in self.tried)

    @property
    def ahead(self) -> bool:
        """Whether the challenger was ahead of the recipe: in the race, or where there was none in the search."""
        if self.challenger is None or self.target is None:
            return False
        if self.comparison is None or not self.comparison.n:
            return self._badness(self.challenger) < self._badness({})
        target = self.target
        won = sum(badness(one, target) < badness(other, target) for one, other in self.race)
        ratio = self.comparison.ratio
        return ratio < 1 if ratio is not None else 2 * won > len(self.race)

    def _badness(self, candidate: Candidate) -> float:
        assert self.target is not None
        return next(badness(record, self.target) for each, record in self.tried if dict(each) == dict(candidate))

    @property
    def within(self) -> bool:
        """Whether the race proves that the recipe is at most 5 % behind the best that was found."""
        found = self.comparison
        if found is None or found.indicative:
            return False
        return found.verdict in ("tie", "slower") or (found.low is not None and found.low >= 1 / (1 + WITHIN.width))

    @property
    def verdict(self) -> str:
        """`faster`, `within 5%` (the recipe is good enough), `undecided`, or `not searched`."""
        if self.why_not or self.target is None:
            return "not searched"
        if self.within:
            return "within 5%"
        return "faster" if self.comparison and self.comparison.verdict == "faster" else "undecided"

    @property
    def winner(self) -> Candidate:
        """What belongs in [engine.NAME]: the challenger's values if it was ahead, else nothing, the recipe."""
        if self.verdict in ("not searched", "within 5%") or not self.reached or not self.ahead:
            return {}
        return self.challenger or {}

    @property
    def sentence(self) -> str:
        """What came out, in one sentence."""
        return _sentence(self)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "engine": self.engine,
            "target": self.target,
            "verdict": self.verdict,
            "winner": dict(self.winner),
            "challenger": None if self.challenger is None else dict(self.challenger),
            "candidates": len(self.tried),
            "race": self.comparison.to_json() if self.comparison else None,
            "sentence": self.sentence,
            "tried": [
                {
                    "values": dict(candidate),
                    "trial_id": record.trial_id,
                    "status": record.status,
                    "time_to_target": None if self.target is None else time_of(record, self.target),
                    "result": record.test_metrics.get(record.metric),
                }
                for candidate, record in self.tried
            ],
        }


def _sentence(one: Tuned) -> str:
    if one.why_not or one.target is None:
        return f"{one.engine}: not searched, {one.why_not or 'time was up'}."
    record = one.tried[0][1]
    goal, number = target_text(record.metric, one.target), len(one.tried)
    if not one.reached:
        return f"{one.engine}: none of {number} candidates reached {goal}."
    if one.challenger is None:
        return f"{one.engine}: only the recipe was tried."
    found = one.comparison
    if found is None or not found.n:
        best = seconds(time_of(record, one.target))
        lead = f"a candidate was ahead of the recipe ({best}) to {goal}" if one.winner else "the recipe was ahead"
        return f"{one.engine}: of {number} candidates {lead} in the search; {one.race_lacks or 'they were not raced'}."
    if one.verdict == "within 5%":
        return f"{one.engine}: the recipe is within 5% of the best of {number} candidates to {goal} ({_spread(found)})."
    told = found.sentence.removesuffix(".")
    return f"{one.engine}: of {number} candidates the best was raced with the recipe: {told}."


def _spread(found: Comparison) -> str:
    if found.low is None or found.high is None:
        return f"reached {found.reached[0]} and {found.reached[1]} times of {found.n}"
    low, high = ratio_text(found.low), ratio_text(found.high)
    return f"it took {ratio_text(found.ratio)} times as long, {low} to {high}, n = {found.n}"


@dataclass(frozen=True)
class Tuning:
    """What came out for a study."""

    study: str
    engines: Sequence[Tuned] = ()
    interrupted: bool = False
    records: int = 0  # that were made this time

    @property
    def reached(self) -> bool:
        return any(one.reached for one in self.engines)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "study": self.study,
            "interrupted": self.interrupted,
            "engines": [one.to_json() for one in self.engines],
        }


def compared(found: Sequence[Tuned]) -> list[Tuned]:
    """The same with the races judged, together: several verdicts are likelier to hold one that is wrong."""
    raced = [one for one in found if one.race]
    judged = dict(zip((one.engine for one in raced), compare_all([_match(one) for one in raced]), strict=True))
    return [replace(one, comparison=judged.get(one.engine)) for one in found]


def _match(one: Tuned) -> Match:
    assert one.target is not None
    figure = time_to(one.target, one.race[0][0].metric)
    challenger, recipe = ([pair[place] for pair in one.race] for place in (0, 1))
    return Match(SettingGroup({}, challenger), SettingGroup({}, recipe), figure, WITHIN, NAMES)


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

    def give_up(self, state: TrialState) -> str | None:
        """Why a training need not go on; None as long as it may still win."""
        if state.train_start is None or state.train_end is not None:
            return None
        trained = time.monotonic() - state.train_start - state.paused_s
        if trained < SHORT_S:
            return None
        if trained > LATE * self.best_s:
            return f"{GIVEN_UP} {trained:.3g} s of training: another candidate needed {self.best_s:.3g} s in all"
        looks = [(event.train_s, event.loss) for event in state.snapshots if event.loss is not None]
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


def bar(best_s: float | None, curves: Sequence[Curve]) -> Callable[[TrialState], str | None] | None:
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
