"""The tuner: checks that a study can be tuned here, and runs a tournament for each engine in its share of the time."""

from __future__ import annotations

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
from trainoff.runner.machine import control_seconds
from trainoff.runner.runner import Runner, RunObserver
from trainoff.runner.status import check_preconditions
from trainoff.study import Study, Trial, derive
from trainoff.tuning.engine_study import EngineStudy, engine_studies_of, limit_rows
from trainoff.tuning.results import (
    EngineTuning,
    PruningRule,
    TuningResult,
    badness,
    check_targets,
    choose_target,
    loss_curve,
    time_of,
    with_comparisons,
)
from trainoff.tuning.search import Candidate, Tried, check_optuna, propose

SEED = 0  # of the search
FIRST_RACE_SEED = 100  # the seeds of play-offs are below
LATER_SHARE = 0.6  # of an engine's time at most is reserved for the play-off and the race
MARGIN = 1.25  # trials differ in length, and those of the race are not the shortest
MIN_TRIALS = 3  # the recipe's among them: with fewer there is nothing to race for
FINALISTS, PLAY_OFF_SEEDS = 3, 2  # candidates in a play-off, and additional seeds of each
ROUNDS = 5  # of a race: fewer give no verdict

GiveUp = Callable[[TrialState], str | None]


@dataclass(frozen=True)
class TuneOptions:
    """The options of `trainoff tune`."""

    minutes: float
    target: float | None = None  # by default the hardest that an engine's recipe reaches
    candidates: int | None = None  # at most, for each engine
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
    """A trial of the search that is about to run, or has just run."""

    engine: str
    name: str  # "the recipe", "candidate 7", "race 2 of 5"
    candidate: Candidate
    record: Record | None = None  # None: it is about to run
    target: float | None = None
    best: float | None = None  # the shortest time to target of earlier candidates
    left: float = 0.0  # seconds of the whole budget


def check(study: Study, options: TuneOptions) -> None:
    """Raise an error if the study cannot be tuned, before anything is downloaded or run."""
    check_optuna()
    engine_studies = engine_studies_of(study)
    check_targets(engine_studies[0].recipe.workload, engine_studies[0].recipe.targets, options.target)
    _ready(engine_studies)


def prepare_data(study: Study, report: data.Progress) -> None:
    """Bring the validation rows into the cache."""
    data.get(engine_studies_of(study)[0].recipe.data, progress=report)


def tune(
    study: Study, out: Path, options: TuneOptions, report: Callable[[TuneStep], None], observer: RunObserver
) -> TuningResult:
    """Tune every engine of a study that is ready here; records go to `<out>/<study>-tune`.

    Ctrl-C ends the search early with the results so far. The same call continues from the records.
    """
    check(study, options)
    prepare_data(study, lambda *_: None)
    ready, skipped = _ready(engine_studies_of(study))
    ready = [limit_rows(engine_study) for engine_study in ready]
    store = Store(out / f"{study.name}-tune")
    store.prepare()
    budget = Budget(options.minutes)
    estimator = Estimator(scan(out)[0])
    new = [engine_study.recipe for engine_study in ready if engine_study.task(engine_study.recipe, store).to_run]
    budget.check([estimator.seconds(trial) for trial in new], options.rounds)
    session = TuningSession(store, Runner(store, observer), budget, options, report)
    results, interrupted = _run_tournaments(session, ready)
    return TuningResult(study.name, with_comparisons([*results, *skipped]), interrupted, session.new_records)


def _run_tournaments(session: TuningSession, engine_studies: Sequence[EngineStudy]) -> tuple[list[EngineTuning], bool]:
    """Run one tournament after the other; return the results, and whether Ctrl-C ended them."""
    results: list[EngineTuning] = []
    for index, engine_study in enumerate(engine_studies):
        share = session.budget.share(len(engine_studies) - index, session.options.rounds)
        tournament = Tournament(session, engine_study, share)
        try:
            tournament.run()
        except (Interrupted, KeyboardInterrupt):
            later = engine_studies[index + 1 :]
            skipped = [EngineTuning(one.name, skip_reason="it was stopped before its turn") for one in later]
            return [*results, tournament.result, *skipped], True
        results.append(tournament.result)
    return results, False


def _ready(engine_studies: Sequence[EngineStudy]) -> tuple[list[EngineStudy], list[EngineTuning]]:
    """Return the studies of engines that can run here, and a result with the reason for the others."""
    ready, skipped = [], []
    for engine_study in engine_studies:
        problem = check_preconditions(engine_study.recipe, engine_study.engine)
        if problem is None:
            ready.append(engine_study)
        else:
            skipped.append(EngineTuning(engine_study.name, skip_reason=problem.reason))
    if not ready:
        reasons = "; ".join(f"{one.engine}: {one.skip_reason}" for one in skipped)
        raise TrainoffError(f"none of the study's engines can be tuned here; {reasons}")
    return ready, skipped


class Interrupted(Exception):
    """The user has pressed Ctrl-C."""


@dataclass
class TuningSession:
    """What the tournaments of all engines share: the store, the runner and the time."""

    store: Store
    runner: Runner
    budget: Budget
    options: TuneOptions
    report: Callable[[TuneStep], None]
    new_records: int = 0
    last_took_s: float | None = None  # from start to stored record; None if the record was there already

    def run(self, engine_study: EngineStudy, trial: Trial, step: TuneStep, give_up: GiveUp | None = None) -> Record:
        """Return a trial's record: the stored one, or a new one."""
        task, start, self.last_took_s = engine_study.task(trial, self.store), time.monotonic(), None
        if task.to_run:
            self.report(replace(step, left=self.budget.left))
            task.give_up = give_up
            result = self.runner.run([task])
            self.new_records, self.last_took_s = self.new_records + 1, time.monotonic() - start
            if result.interrupted:
                raise Interrupted
        assert task.record is not None
        return task.record


@dataclass
class Tournament:
    """The search, play-off and race of one engine; `result` is complete at any moment."""

    session: TuningSession
    engine_study: EngineStudy
    share: BudgetShare
    tried: list[tuple[Candidate, Record]] = field(default_factory=list)
    finals: list[tuple[Candidate, list[Record]]] = field(default_factory=list)  # the best, with additional seeds
    race: list[tuple[Record, Record]] = field(default_factory=list)
    target: float | None = None
    race_note: str | None = None

    def run(self) -> None:
        """Run the recipe, the search, the play-off and the race."""
        recipe = self._try({}, "the recipe")
        if recipe.status == "unsupported":
            return
        self._load_earlier()
        most = self.session.options.candidates
        while (most is None or len(self.tried) < most) and self.share.for_search:
            tried = [Tried(candidate, self._badness(record)) for candidate, record in self.tried]
            if (proposed := propose(self.engine_study.space, tried, SEED)) is None:
                break
            self._try(proposed, f"candidate {len(self.tried)}")
        if self.challenger is None or not self.result.reached:
            return
        self._play_off()
        self._race(self.challenger)

    def _load_earlier(self) -> None:
        """Load the candidates that earlier searches in this folder have tried, in their order."""
        records = sorted(self.session.store.newest().values(), key=lambda record: record.started_at or "")
        for record in records:
            if candidate := self.engine_study.candidate(record):  # {} is the recipe, which is loaded
                self.tried.append((candidate, record))
                self.share.book(record)

    def _badness(self, record: Record) -> float:
        assert self.target is not None  # known since the recipe has run
        return badness(record, self.target)

    def _try(self, candidate: Candidate, name: str) -> Record:
        best = self._best_s()
        step = TuneStep(self.engine_study.name, name, candidate, target=self.target, best=best)
        give_up = None
        if best is not None:
            give_up = PruningRule(best, [loss_curve(self.session.store.folder, one) for _, one in self.tried]).give_up
        record = self.session.run(self.engine_study, self.engine_study.trial(candidate), step, give_up)
        if self.target is None and record.targets:
            self.target = choose_target(record.targets, record, self.session.options.target)
        self.tried.append((candidate, record))
        self.share.book(record, self.session.last_took_s)
        self.session.report(replace(step, target=self.target, record=record, left=self.session.budget.left))
        return record

    def _best_s(self) -> float | None:
        if self.target is None:
            return None
        times = [found for _, record in self.tried if (found := time_of(record, self.target)) is not None]
        return min(times, default=None)

    @property
    def challenger(self) -> Candidate | None:
        """The best candidate other than the recipe, after a play-off by the median of its seeds."""
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
        if len(best) < FINALISTS or self.share.left < self.share.later:
            return
        finals = [(candidate, [record]) for candidate, record in best]
        for number in range(1, PLAY_OFF_SEEDS + 1):
            for candidate, records in finals:
                best_s = self._best_s()
                give_up = None if best_s is None else PruningRule(best_s).give_up
                name = f"play-off {number} of {PLAY_OFF_SEEDS}"
                records.append(self._rerun(candidate, name, (number, number), give_up))
        self.finals = finals

    def _race(self, challenger: Candidate) -> None:
        """Run challenger and recipe by turns with the same fresh seeds, so that luck in the search does not count.

        The number of rounds is decided before the race, so that its result cannot decide when it ends.
        """
        requested, rounds = self.session.options.rounds, self.share.rounds_left
        if rounds < requested:
            self.race_note = f"there was time for {rounds} of {requested} rounds of a race"
        first = FIRST_RACE_SEED + derive("race", sorted(challenger.items())) % 10**6
        for number in range(1, rounds + 1):
            turns: Sequence[Candidate] = (challenger, {}) if number % 2 else ({}, challenger)
            records = [self._rerun(one, f"race {number} of {rounds}", (number, first + number)) for one in turns]
            self.race.append((records[0], records[1]) if number % 2 else (records[1], records[0]))

    def _rerun(self, candidate: Candidate, name: str, rerun: tuple[int, int], give_up: GiveUp | None = None) -> Record:
        """Run a candidate with another seed."""
        step = TuneStep(self.engine_study.name, name, candidate, target=self.target)
        record = self.session.run(self.engine_study, self.engine_study.trial(candidate, rerun), step, give_up)
        self.session.report(replace(step, record=record, left=self.session.budget.left))
        return record

    @property
    def result(self) -> EngineTuning:
        """The result so far."""
        recipe = self.tried[0][1] if self.tried else None
        skip_reason = recipe.reason if recipe and recipe.status == "unsupported" else None
        challenger = None if skip_reason else self.challenger
        return EngineTuning(
            self.engine_study.name, self.target, self.tried, challenger, self.race, skip_reason, self.race_note
        )


@dataclass
class BudgetShare:
    """The time of one engine, part of it reserved for the play-off and the race."""

    seconds: float
    rounds: int
    _start: float = field(default_factory=time.monotonic)
    _spent: list[float] = field(default_factory=list)  # by trial

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.monotonic() - self._start)

    def book(self, record: Record, took_s: float | None = None) -> None:
        """Add the duration of a trial: as measured, or by its record plus the control kernel before and after it."""
        self._spent.append(took_s if took_s is not None else (record.cold_s or 0.0) + 2 * control_seconds())

    @property
    def _usual(self) -> float:
        return statistics.median(self._spent) if self._spent else 0.0

    @property
    def for_search(self) -> bool:
        """Whether there is time for one more candidate; from MIN_TRIALS on the time for play-off and race is kept."""
        later = min(self.later, LATER_SHARE * self.seconds)
        return self.left - (0.0 if len(self._spent) < MIN_TRIALS else later) >= self._usual

    @property
    def later(self) -> float:
        """Seconds for play-off and race, with a margin: a race without its last round gives no verdict."""
        return MARGIN * (FINALISTS * PLAY_OFF_SEEDS + 2 * self.rounds) * self._usual

    @property
    def rounds_left(self) -> int:
        """The rounds of a race for which there is time."""
        pair = 2 * self._usual
        return min(self.rounds, max(0, round(self.left / pair))) if pair else self.rounds


@dataclass
class Budget:
    """The time of the whole command."""

    minutes: float
    _start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return max(0.0, 60 * self.minutes - (time.monotonic() - self._start))

    def share(self, engines: int, rounds: int) -> BudgetShare:
        """Return an equal part of the time left for each of the remaining engines."""
        return BudgetShare(self.left / engines, rounds)

    def check(self, estimates: Sequence[float], rounds: int) -> None:
        """Raise an error if the time does not even suffice for every engine's recipe, by their estimated seconds."""
        needed = sum(estimates)
        if needed <= 60 * self.minutes:
            return
        enough = (6 + FINALISTS * PLAY_OFF_SEEDS + 2 * rounds) * needed / 60
        many = len(estimates)
        recipes = "the recipe alone takes" if many == 1 else f"the recipes of {many} engines alone take"
        raise TrainoffError(
            f"--minutes {self.minutes:g} is too little: {recipes} about {about(needed)}; a search "
            f"with a race at its end needs --minutes {max(1, round(enough))} or more"
        )
