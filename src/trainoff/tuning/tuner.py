"""The tuner: whether a study can be tuned here, and for each engine a tournament within its share of the time."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainoff import data
from trainoff.analysis.format import about
from trainoff.errors import TrainoffError
from trainoff.records import Record, Store, scan
from trainoff.runner.estimate import Estimator
from trainoff.runner.events import TrialState
from trainoff.runner.machine import seconds as control_s
from trainoff.runner.runner import Runner, RunObserver
from trainoff.runner.status import check_preconditions
from trainoff.study import Study, Trial, derive
from trainoff.tuning.engine_study import EngineStudy, engine_studies_of, with_rows
from trainoff.tuning.outcome import Tuned, Tuning, badness, bar, check_targets, compared, goal, losses, time_of
from trainoff.tuning.search import Candidate, Tried, check_optuna, propose


def check(study: Study, options: TuneOptions) -> None:
    """Refuse what cannot be tuned, before anything is downloaded or run."""
    check_optuna()
    engine_studies = engine_studies_of(study)
    check_targets(engine_studies[0].recipe.workload, engine_studies[0].recipe.targets, options.target)
    _ready(engine_studies)


def get_rows(study: Study, say: data.Progress) -> None:
    """Bring the validation rows into the cache."""
    data.get(engine_studies_of(study)[0].recipe.data, say=say)


def tune(study: Study, out: Path, options: TuneOptions, say: Callable[[TuneStep], None], view: RunObserver) -> Tuning:
    """Tune every engine of a study that is ready here; records go to `<out>/<study>-tune`.

    Ctrl-C ends it early with what is known by then. Run again, it takes up what was tried before.
    """
    check(study, options)
    get_rows(study, lambda *_: None)
    ready, absent = _ready(engine_studies_of(study))
    ready = [with_rows(engine_study) for engine_study in ready]
    store = Store(out / f"{study.name}-tune")
    store.prepare()
    budget = Budget(options.minutes)
    estimator = Estimator(scan(out)[0])
    new = [engine_study.recipe for engine_study in ready if engine_study.task(engine_study.recipe, store).to_run]
    budget.check([estimator.seconds(trial) for trial in new], options.rounds)
    place = TournamentEntry(store, Runner(store, view), budget, options, say)
    found, interrupted = _one_by_one(place, ready)
    return Tuning(study.name, compared([*found, *absent]), interrupted, place.made)


def _one_by_one(place: TournamentEntry, engine_studies: Sequence[EngineStudy]) -> tuple[list[Tuned], bool]:
    tournaments: list[Tournament] = []
    with contextlib.suppress(Stopped, KeyboardInterrupt):
        for number, engine_study in enumerate(engine_studies):
            tournaments.append(
                Tournament(place, engine_study, place.budget.share(len(engine_studies) - number, place.options.rounds))
            )
            tournaments[-1].go()
        return [tournament.result for tournament in tournaments], False
    late = [
        Tuned(engine_study.name, why_not="it was stopped before its turn")
        for engine_study in engine_studies[len(tournaments) :]
    ]
    return [*(tournament.result for tournament in tournaments), *late], True


def _ready(engine_studies: Sequence[EngineStudy]) -> tuple[list[EngineStudy], list[Tuned]]:
    """The lanes that can run here, and for the others why not."""
    refused = {
        engine_study.name: check_preconditions(engine_study.recipe, engine_study.engine)
        for engine_study in engine_studies
    }
    ready = [engine_study for engine_study in engine_studies if refused[engine_study.name] is None]
    absent = [Tuned(name, why_not=verdict.reason) for name, verdict in refused.items() if verdict]
    if not ready:
        told = "; ".join(f"{one.engine}: {one.why_not}" for one in absent)
        raise TrainoffError(f"none of the study's engines can be tuned here; {told}")
    return ready, absent


SEED = 0  # of the search
APART = 100  # seeds of races begin here, those of play-offs below


class Stopped(Exception):
    """The user has pressed Ctrl-C."""


@dataclass
class TournamentEntry:
    """What all contests share: the store, the runner, the time and who watches."""

    store: Store
    runner: Runner
    budget: Budget
    options: TuneOptions
    say: Callable[[TuneStep], None]
    made: int = 0  # new records
    took_s: float | None = None  # by the last trial, from start to stored record; None: it was there

    def run(
        self,
        engine_study: EngineStudy,
        trial: Trial,
        step: TuneStep,
        give_up: Callable[[TrialState], str | None] | None = None,
    ) -> Record:
        """A trial's record: the one that is there, or a new one."""
        task, start, self.took_s = engine_study.task(trial, self.store), time.monotonic(), None
        if task.to_run:
            self.say(replace(step, left=self.budget.left))
            task.give_up = give_up
            outcome = self.runner.run([task])
            self.made, self.took_s = self.made + 1, time.monotonic() - start
            if outcome.interrupted:
                raise Stopped
        assert task.record is not None
        return task.record

    def tell(self, step: TuneStep, record: Record) -> None:
        """Say how it went."""
        self.say(replace(step, record=record, left=self.budget.left))


@dataclass
class Tournament:
    """One engine's contest while it is under way; `result` is what is known at any moment."""

    place: TournamentEntry
    engine_study: EngineStudy
    share: BudgetShare
    tried: list[tuple[Candidate, Record]] = field(default_factory=list)
    finals: list[tuple[Candidate, list[Record]]] = field(default_factory=list)  # the best, each with some seeds more
    race: list[tuple[Record, Record]] = field(default_factory=list)
    target: float | None = None
    race_lacks: str | None = None

    def go(self) -> None:
        """The recipe, the search, the play-off, the race."""
        recipe = self._try({}, "the recipe")
        if recipe.status == "unsupported":
            return
        self._remember()
        while self._more() and (candidate := propose(self.engine_study.space, self._history(), SEED)) is not None:
            self._try(candidate, f"candidate {len(self.tried)}")
        if self.challenger is None or not self.result.reached:
            return
        self._play_off()
        self._race(self.challenger)

    def _remember(self) -> None:
        """Take up what earlier searches in this folder have tried, in their order."""
        records = sorted(self.place.store.newest().values(), key=lambda record: record.started_at or "")
        for record in records:
            candidate = self.engine_study.candidate(record)
            if candidate:  # the recipe is there already
                self.tried.append((candidate, record))
                self.share.book(record)

    def _more(self) -> bool:
        most = self.place.options.candidates
        return (most is None or len(self.tried) < most) and self.share.for_search

    def _history(self) -> list[Tried]:
        return [Tried(candidate, self._badness(record)) for candidate, record in self.tried]

    def _badness(self, record: Record) -> float:
        assert self.target is not None  # known since the recipe has run
        return badness(record, self.target)

    def _try(self, candidate: Candidate, what: str) -> Record:
        best = self._best_s()
        curves = [losses(self.place.store.folder, record) for _, record in self.tried] if best is not None else []
        step = TuneStep(self.engine_study.name, what, candidate, target=self.target, best=best)
        record = self.place.run(self.engine_study, self.engine_study.trial(candidate), step, bar(best, curves))
        if self.target is None and record.targets:
            self.target = goal(record.targets, record, self.place.options.target)
        self.tried.append((candidate, record))
        self.share.book(record, self.place.took_s)
        self.place.tell(replace(step, target=self.target), record)
        return record

    def _best_s(self) -> float | None:
        if self.target is None:
            return None
        times = [found for _, record in self.tried if (found := time_of(record, self.target)) is not None]
        return min(times, default=None)

    @property
    def challenger(self) -> Candidate | None:
        """The best of all that are not the recipe: by the median of its seeds, once there was a play-off."""
        if self.finals:
            return min(self.finals, key=lambda each: statistics.median(map(self._badness, each[1])))[0]
        others = self._best_first()
        return others[0][0] if others else None

    def _best_first(self) -> list[tuple[Candidate, Record]]:
        others = [(candidate, record) for candidate, record in self.tried if candidate]
        return sorted(others, key=lambda each: self._badness(each[1]))

    def _play_off(self) -> None:
        """Run the best few again with other seeds: with one seed, the first of many is the luckiest."""
        best = self._best_first()[:FINALISTS]
        if len(best) < FINALISTS or not self.share.for_play_off:
            return
        finals = [(candidate, [record]) for candidate, record in best]
        for number in range(1, PLAY_OFF + 1):
            for candidate, records in finals:
                what = f"play-off {number} of {PLAY_OFF}"
                records.append(self._again(candidate, what, (number, number), bar(self._best_s(), ())))
        self.finals = finals

    def _race(self, challenger: Candidate) -> None:
        """Run both again with the same fresh seeds, taking turns: what was chosen for its times must show them anew."""
        rounds = self._rounds()
        first = APART + derive("race", sorted(challenger.items())) % 10**6
        for number in range(1, rounds + 1):
            turns: Sequence[Candidate] = (challenger, {}) if number % 2 else ({}, challenger)
            ran = [self._again(one, f"race {number} of {rounds}", (number, first + number)) for one in turns]
            self.race.append((ran[0], ran[1]) if number % 2 else (ran[1], ran[0]))

    def _again(
        self,
        candidate: Candidate,
        what: str,
        again: tuple[int, int],
        give_up: Callable[[TrialState], str | None] | None = None,
    ) -> Record:
        """Run a candidate with another seed."""
        step = TuneStep(self.engine_study.name, what, candidate, target=self.target)
        record = self.place.run(self.engine_study, self.engine_study.trial(candidate, again), step, give_up)
        self.place.tell(step, record)
        return record

    def _rounds(self) -> int:
        """How many rounds: decided before the race, so that its result cannot decide when it ends."""
        wanted = self.place.options.rounds
        rounds = self.share.rounds_left
        if rounds < wanted:
            self.race_lacks = f"there was time for {rounds} of {wanted} rounds of a race"
        return rounds

    @property
    def result(self) -> Tuned:
        """What is known by now."""
        recipe = self.tried[0][1] if self.tried else None
        why_not = recipe.reason if recipe and recipe.status == "unsupported" else None
        challenger = None if why_not else self.challenger
        return Tuned(self.engine_study.name, self.target, self.tried, challenger, self.race, why_not, self.race_lacks)


LATER_SHARE = 0.6  # of an engine's time at most is kept for the play-off and the race
MARGIN = 1.25  # trials differ in length, and those of the race are not the shortest
A_FEW = 3  # trials, the recipe's among them: with fewer there is nothing to race for
FINALISTS, PLAY_OFF = 3, 2  # who is in a play-off, and how many seeds more each of them gets


@dataclass
class BudgetShare:
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

    def share(self, engines: int, rounds: int) -> BudgetShare:
        """An equal part of what is left for each of so many engines."""
        return BudgetShare(self.left / engines, rounds)

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


ROUNDS = 5  # of a race: fewer give no verdict


@dataclass(frozen=True)
class TuneOptions:
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
class TuneStep:
    """Where tuning stands: what is about to run, or has just run."""

    engine: str
    what: str  # "the recipe", "candidate 7", "race 2 of 5"
    candidate: Candidate
    record: Record | None = None  # None: it is about to run
    target: float | None = None
    best: float | None = None  # the shortest time to target of earlier candidates
    left: float = 0.0  # seconds of the whole budget
