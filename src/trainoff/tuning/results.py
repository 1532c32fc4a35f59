"""Results of tuning for each engine, the score of a candidate, and the rule that ends a hopeless one early."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainoff.analysis import Comparison, SettingGroup
from trainoff.analysis.compare import Band, Match, compare_all
from trainoff.analysis.figures import time_to
from trainoff.analysis.format import ratio_text, seconds, target_text
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record, series_of
from trainoff.runner.events import TrialState
from trainoff.tuning.search import Candidate

WITHIN = Band(0.05)  # a recipe this close to the best candidate is good enough
NAMES = ("the challenger", "the recipe")


@dataclass(frozen=True)
class EngineTuning:
    """The search of one engine: every candidate, and the race of the best one with the recipe."""

    engine: str
    target: float | None = None
    tried: Sequence[tuple[Candidate, Record]] = ()  # the recipe first
    challenger: Candidate | None = None  # the best candidate other than the recipe
    race: Sequence[tuple[Record, Record]] = ()  # challenger and recipe with the same seed
    skip_reason: str | None = None  # why there was no search
    race_note: str | None = None  # why the race is short or missing
    comparison: Comparison | None = None  # of the race

    @property
    def reached(self) -> bool:
        """Whether any candidate reached the target."""
        return self.target is not None and any(time_of(record, self.target) is not None for _, record in self.tried)

    @property
    def challenger_leads(self) -> bool:
        """Whether the challenger was faster than the recipe in the race, or without a race in the search."""
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
    def verdict(self) -> str:
        """`faster`, `within 5%` (the recipe is good enough), `undecided`, or `not searched`."""
        race = self.comparison
        if self.skip_reason or self.target is None:
            return "not searched"
        if race and not race.indicative:
            low_enough = race.low is not None and race.low >= 1 / (1 + WITHIN.width)
            if low_enough or race.verdict in ("tie", "slower"):
                return "within 5%"
        return "faster" if race and race.verdict == "faster" else "undecided"

    @property
    def winner(self) -> Candidate:
        """The values for [engine.NAME]: the challenger's if it was faster, else none, which is the recipe."""
        if self.verdict in ("not searched", "within 5%") or not self.reached or not self.challenger_leads:
            return {}
        return self.challenger or {}

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.skip_reason or self.target is None:
            return f"{self.engine}: not searched, {self.skip_reason or 'time was up'}."
        record = self.tried[0][1]
        target, number = target_text(record.metric, self.target), len(self.tried)
        if not self.reached:
            return f"{self.engine}: none of {number} candidates reached {target}."
        if self.challenger is None:
            return f"{self.engine}: only the recipe was tried."
        race = self.comparison
        if race is None or not race.n:
            recipe = seconds(time_of(record, self.target))
            lead = (
                f"one was faster to {target} than the recipe ({recipe})"
                if self.winner
                else "the recipe was the fastest"
            )
            note = self.race_note or "there was no race"
            return f"{self.engine}: of {number} candidates, {lead} in the search; {note}."
        if self.verdict == "within 5%":
            detail = f"reached {race.reached[0]} and {race.reached[1]} times of {race.n}"
            if race.low is not None and race.high is not None:
                ratio, low, high = ratio_text(race.ratio), ratio_text(race.low), ratio_text(race.high)
                detail = f"it took {ratio} times as long, {low} to {high}, n = {race.n}"
            return f"{self.engine}: the recipe is within 5% of the best of {number} candidates to {target} ({detail})."
        sentence = race.sentence.removesuffix(".")
        return f"{self.engine}: the best of {number} candidates ran a race with the recipe: {sentence}."

    def to_json(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class TuningResult:
    """The results for all engines of a study."""

    study: str
    engines: Sequence[EngineTuning] = ()
    interrupted: bool = False
    records: int = 0  # that were made this time

    @property
    def reached(self) -> bool:
        return any(one.reached for one in self.engines)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "interrupted": self.interrupted,
            "engines": [one.to_json() for one in self.engines],
        }


def with_comparisons(results: Sequence[EngineTuning]) -> list[EngineTuning]:
    """Compare all races together, because with several verdicts one is more likely to be wrong."""
    raced = [one for one in results if one.race]
    found = dict(zip((one.engine for one in raced), compare_all([_match(one) for one in raced]), strict=True))
    return [replace(one, comparison=found.get(one.engine)) for one in results]


def _match(one: EngineTuning) -> Match:
    assert one.target is not None
    figure = time_to(one.target, one.race[0][0].metric)
    challenger, recipe = ([pair[side] for pair in one.race] for side in (0, 1))
    return Match(SettingGroup({}, challenger), SettingGroup({}, recipe), figure, WITHIN, NAMES)


NEVER = 1e6  # later than any training that reached the target
FAILED = 1e9


def time_of(record: Record, target: float) -> float | None:
    """Return the seconds of training to the target; None if it was not reached, or the trial went wrong.

    A candidate that was ended early may have reached it: that shows only when its snapshots are evaluated.
    """
    correct = record.equivalence.get("verdict") != "wrong"
    ended_early = record.status == "timeout" and str(record.reason).startswith(GIVEN_UP)
    return record.time_to_target.get(str(target)) if record.status == "ok" or (ended_early and correct) else None


def badness(record: Record, target: float) -> float:
    """Return a number to sort by: seconds to the target, then the distance to it, then failures."""
    reached = time_of(record, target)
    if reached is not None:
        return reached
    value = record.test_metrics.get(record.metric)
    if record.status not in ("ok", "timeout") or value is None:
        return FAILED
    metric = METRICS[record.metric]
    distance = metric.badness(value) - metric.badness(target)
    return NEVER * (1 + min(max(distance, 0.0), 1.0))


def choose_target(targets: Sequence[float], recipe: Record, requested: float | None) -> float:
    """Return the target to tune for: the hardest that the recipe reaches reliably, or else the easiest.

    A target that the recipe only just reaches is reached with one seed and missed with the next.
    """
    if requested is not None:
        return requested
    hardest_first = sorted(targets, key=METRICS[recipe.metric].badness)
    return next((each for each in hardest_first if _reliably_reached(recipe, each)), hardest_first[-1])


def _reliably_reached(record: Record, target: float) -> bool:
    """Tell whether the final metric passes the target by more than its standard error."""
    value = record.test_metrics.get(record.metric)
    if time_of(record, target) is None or value is None:
        return False
    metric, rows = METRICS[record.metric], record.dataset.get("test_rows")
    share = metric.name in ("accuracy", "error")
    error = math.sqrt(target * (1 - target) / rows) if share and rows else 0.0
    return metric.badness(value) <= metric.badness(target) - error


def check_targets(workload: str, targets: Sequence[float], requested: float | None) -> None:
    """Raise an error if the study has no targets, or not the requested one."""
    if not targets:
        raise TrainoffError(f"{workload} has no targets to tune for; add targets = [...] to the study")
    if requested is not None and requested not in targets:
        known = ", ".join(f"{each:g}" for each in targets)
        raise TrainoffError(f"--target {requested:g}: it is not among the study's targets; they are {known}")


GIVEN_UP = "given up after"  # the reason of such a record begins with it
LATE_FACTOR = 1.25  # times the best time to target: what has not reached it by then cannot win
MIN_TRAIN_S = 1.0  # to end a training sooner saves less than the start of the next takes
HALFWAY = 0.5  # of the best time to target: from then on the loss counts
LOSS_SLACK = 1.5  # times the median loss: the loss of one batch is a rough guess
MIN_CURVES = 4  # fewer loss curves give no usable median

Curve = Sequence[tuple[float, float]]  # seconds of training, and the training loss at that time


@dataclass(frozen=True)
class PruningRule:
    """Ends a running candidate that cannot win, by the best time and the loss curves of earlier ones."""

    best_s: float
    curves: Sequence[Curve] = ()

    def give_up(self, state: TrialState) -> str | None:
        """Return why a training should end; None as long as it may still win."""
        if state.train_start is None or state.train_end is not None:
            return None
        trained = time.monotonic() - state.train_start - state.paused_s
        if trained < MIN_TRAIN_S:
            return None
        if trained > LATE_FACTOR * self.best_s:
            return f"{GIVEN_UP} {trained:.3g} s of training: another candidate needed {self.best_s:.3g} s in all"
        losses = [(event.train_s, event.loss) for event in state.snapshots if event.loss is not None]
        return self._loss_too_high(*losses[-1]) if losses else None

    def _loss_too_high(self, trained: float, loss: float) -> str | None:
        """Return why a loss is hopeless: far above the median of the earlier candidates at that time."""
        others = [found for curve in self.curves if (found := _loss_at(curve, trained)) is not None]
        if trained < HALFWAY * self.best_s or len(others) < MIN_CURVES:
            return None
        median = statistics.median(others)
        if loss <= LOSS_SLACK * median:
            return None
        return f"{GIVEN_UP} {trained:.3g} s of training: its loss was {loss:.3g}, and {median:.3g} is usual by then"


def _loss_at(curve: Curve, trained: float) -> float | None:
    """Return the last loss up to a time; None before the first."""
    return next((loss for second, loss in reversed(curve) if second <= trained), None)


def loss_curve(folder: Path, record: Record) -> Curve:
    """Return seconds of training and loss at every snapshot that has one; empty if the record has no curve."""
    frame = series_of(folder, record, "curve")
    if frame is None or not {"train_s", "objective"} <= set(frame.columns):
        return []
    known = frame.select("train_s", "objective").drop_nulls().sort("train_s")
    return [(float(second), float(loss)) for second, loss in known.iter_rows()]
