"""How long trials will take: from earlier records where there are any, else by a rough rule."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from functools import cache
from math import isqrt

from trainoff import data
from trainoff.data import DatasetEntry
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES, DataShape
from trainoff.records import Record
from trainoff.runner import machine
from trainoff.runner.events import TrialState
from trainoff.runner.runner import NullObserver, Task
from trainoff.study import Trial

STARTUP_S = 3.0
FLOPS = 3e10  # of one core on small matrices; a guess that only serves until there are records
UNKNOWN_OPERATIONS = 6e6  # of a row, where nothing is known
UNKNOWN = DatasetEntry("", "", 10_000, 2_000, 100, 10)  # what the user's own data is taken for until it has been read


class Estimator:
    """Guesses seconds for a trial; `known` says how many of its guesses rest on records."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._alike: dict[tuple[object, ...], list[Record]] = {}
        for record in records:
            if record.status == "ok" and record.cold_s:
                self._alike.setdefault(_kind(record), []).append(record)
        self.known = 0
        self._control_s = machine.seconds()

    def seconds(self, trial: Trial) -> float:
        """The median of the most similar records, scaled by the samples to be seen; else a rough rule.

        The control kernel that follows a trial is part of it here.
        """
        alike = self._alike.get(_kind(trial))
        self.known += bool(alike)
        guess = statistics.median(_scaled(record, trial) for record in alike) if alike else _rough(trial)
        return min(guess, trial.limits.timeout_s) + self._control_s


def _kind(one: Record | Trial) -> tuple[object, ...]:
    """What two trials must share for one to tell how long the other takes."""
    return one.engine, one.workload, one.mode, one.workers, one.cores


def _rough(trial: Trial) -> float:
    """Where no record is alike."""
    return STARTUP_S + _operations(trial) / FLOPS / max(trial.cores, 0.1)


def _scaled(record: Record, trial: Trial) -> float:
    """What a record's time would be with the trial's number of samples."""
    train, cold = record.train_s or 0.0, record.cold_s or 0.0
    seen = record.samples_seen or 1
    return cold - train + train * samples(trial) / seen


def samples(trial: Trial) -> int:
    """How many samples a trial will see."""
    return int((trial.params["train_rows"] or _entry(trial.data).train_rows) * trial.params["epochs"])


@cache
def _entry(dataset: str) -> DatasetEntry:
    return data.entry(dataset) or UNKNOWN


def _operations(trial: Trial) -> float:
    """Return about how many operations the training takes."""
    entry, side = _entry(trial.data), isqrt(_entry(trial.data).features)
    nonzeros = round(entry.nonzeros) if entry.nonzeros else None
    shape = DataShape(entry.name, entry.features, entry.classes, (side, side), nonzeros)
    try:
        operations = FAMILIES[trial.model].build(trial.params, shape).operations
    except TrainoffError:  # the guessed pictures are too small for the network; the real ones may not be
        operations = UNKNOWN_OPERATIONS
    return operations * samples(trial)


class Clock(NullObserver):
    """How long a run has taken and how long it has to go: a view that others ask."""

    def __init__(self, tasks: Sequence[Task], estimator: Estimator) -> None:
        self._start = time.monotonic()
        self._guess = {task.trial_id: estimator.seconds(task.trial) for task in tasks if task.to_run}
        self._running: Task | None = None
        self._running_left = 0.0

    def started(self, task: Task) -> None:
        self._running, self._running_left = task, self._guess.get(task.trial_id, 0.0)

    def update(self, task: Task, state: TrialState) -> None:
        """Once training is under way, its own pace says more than any record."""
        elapsed = time.monotonic() - state.start
        whole = samples(task.trial)
        if state.train_start and state.samples_seen:
            self._running_left = (time.monotonic() - state.train_start) * (whole / state.samples_seen - 1)
        else:
            self._running_left = max(0.0, self._guess.get(task.trial_id, 0.0) - elapsed)

    def finished(self, task: Task, record: Record) -> None:
        self._guess.pop(task.trial_id, None)
        self._running, self._running_left = None, 0.0

    def gone(self) -> float:
        return time.monotonic() - self._start

    def running_left(self) -> float:
        """Seconds that the running trial should still need."""
        return max(0.0, self._running_left)

    def left(self) -> float:
        """Seconds that the whole run should still need."""
        others = sum(guess for trial_id, guess in self._guess.items() if not self._is_running(trial_id))
        return others + self.running_left()

    def _is_running(self, trial_id: str) -> bool:
        return self._running is not None and self._running.trial_id == trial_id
