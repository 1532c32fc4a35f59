"""Estimate how long trials will take: from records of similar trials, else by a rough rule."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Self

from trainoff import data
from trainoff.data import DatasetEntry
from trainoff.errors import TrainoffError
from trainoff.models import FAMILIES, DataShape
from trainoff.records import Record, scan
from trainoff.runner import machine
from trainoff.runner.events import TrialState
from trainoff.runner.runner import RunObserver, Task
from trainoff.study import Trial

STARTUP_S = 3.0
FLOPS = 3e10  # of one core on small matrices; a guess for when there are no records
UNKNOWN_OPERATIONS = 6e6  # of a row, where nothing is known
UNKNOWN_DATASET = DatasetEntry("", "", 10_000, 2_000, 100, 10)  # assumed of users' own data before it is read


class Estimator:
    """Estimates the seconds of trials; `known` counts the estimates that rest on records."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._similar: dict[tuple[object, ...], list[Record]] = {}
        for record in records:
            if record.status == "ok" and record.cold_s:
                self._similar.setdefault(_similarity_key(record), []).append(record)
        self.known = 0
        self._control_s = machine.control_seconds()

    @classmethod
    def from_records_in(cls, folder: Path) -> Self:
        """Return an estimator that knows the records below a folder."""
        return cls(scan(folder)[0] if folder.is_dir() else [])

    def seconds(self, trial: Trial) -> float:
        """Return the median of similar records, scaled by the samples to be seen; else a rough estimate.

        The control kernel that follows the trial is included.
        """
        similar = self._similar.get(_similarity_key(trial))
        self.known += bool(similar)
        if similar:
            seconds = statistics.median(_scaled(record, trial) for record in similar)
        else:
            seconds = STARTUP_S + _operations(trial) / FLOPS / max(trial.cores, 0.1)
        return min(seconds, trial.limits.timeout_s) + self._control_s


def _similarity_key(one: Record | Trial) -> tuple[object, ...]:
    return one.engine, one.workload, one.mode, one.workers, one.cores


def _scaled(record: Record, trial: Trial) -> float:
    """Return what a record's time would be with the trial's number of samples."""
    train, cold = record.train_s or 0.0, record.cold_s or 0.0
    seen = record.samples_seen or 1
    return cold - train + train * samples(trial) / seen


def samples(trial: Trial) -> int:
    """Return how many samples a trial will see."""
    return int((trial.params["train_rows"] or _entry(trial.data).train_rows) * trial.params["epochs"])


@cache
def _entry(dataset: str) -> DatasetEntry:
    return data.entry(dataset) or UNKNOWN_DATASET


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


class Clock(RunObserver):
    """Tracks how long a run has taken and how long it still needs."""

    def __init__(self, tasks: Sequence[Task], estimator: Estimator) -> None:
        self._start = time.monotonic()
        self._estimates = {task.trial_id: estimator.seconds(task.trial) for task in tasks if task.to_run}
        self._running: Task | None = None
        self._running_left = 0.0

    def started(self, task: Task) -> None:
        self._running, self._running_left = task, self._estimates.get(task.trial_id, 0.0)

    def update(self, task: Task, state: TrialState) -> None:
        """Estimate the rest from the progress of the training, once there is any."""
        elapsed = time.monotonic() - state.start
        whole = state.expected or samples(task.trial)
        if state.train_start and state.samples_seen:
            self._running_left = (time.monotonic() - state.train_start) * (whole / state.samples_seen - 1)
        else:
            self._running_left = max(0.0, self._estimates.get(task.trial_id, 0.0) - elapsed)

    def finished(self, task: Task, record: Record) -> None:
        self._estimates.pop(task.trial_id, None)
        self._running, self._running_left = None, 0.0

    def gone(self) -> float:
        return time.monotonic() - self._start

    def running_left(self) -> float:
        """Return the seconds that the running trial should still need."""
        return max(0.0, self._running_left)

    def left(self) -> float:
        """Return the seconds that the whole run should still need."""
        running = self._running.trial_id if self._running else None
        others = sum(seconds for trial_id, seconds in self._estimates.items() if trial_id != running)
        return others + self.running_left()
