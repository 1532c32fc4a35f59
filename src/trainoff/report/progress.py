"""The progress of a run: a file for the live view, and plain lines for logs and pipes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from trainoff.analysis import failure
from trainoff.analysis.format import about, count, display_value, key_text, quality, seconds, size
from trainoff.analysis.groups import varying_keys
from trainoff.files import atomic_write
from trainoff.records import Record, Store
from trainoff.report.tables import setting
from trainoff.runner.estimate import Clock, samples
from trainoff.runner.events import TrialState
from trainoff.runner.runner import RunObserver, Task

PROGRESS = "progress.json"
PLAN = "plan.json"
INTERVAL_S = 1.0  # a shorter one would take CPU time from the running trial


@dataclass(frozen=True)
class RunningTrial:
    """The trial that is running."""

    trial_id: str
    title: str
    steps: int | None  # in total; None if the engine counts steps differently
    phase: str = "starting"
    seconds: float = 0.0
    step: int = 0
    samples_seen: int = 0
    loss: float | None = None


@dataclass(frozen=True)
class RunProgress:
    """The content of the progress file."""

    at: float  # seconds since the epoch
    done: int
    total: int
    gone_s: float
    left_s: float
    note: str | None
    running: RunningTrial | None


class ProgressFile(RunObserver):
    """An observer that writes the progress of a run to a file, at most once a second, in a scratch folder.

    The folder is locked while the process lives and removed at the end of the run; if its lock is free, the run was
    killed. An error while writing is ignored: no run fails because of it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._folder: Path | None = None
        self._stack = ExitStack()
        self._tasks: Sequence[Task] = ()
        self._keys: Sequence[str] = ()
        self._running: RunningTrial | None = None
        self._note: str | None = None
        self._written = -math.inf

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._folder = self._stack.enter_context(self._store.stage("run"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def planned(self, tasks: Sequence[Task]) -> None:
        self._tasks, self._keys = tasks, keys_of(tasks)
        self._write(PLAN, [task.trial_id for task in tasks])
        self._publish()

    def waiting(self, sentence: str) -> None:
        if sentence != self._note:
            self._note = sentence
            self._publish()

    def started(self, task: Task) -> None:
        self._note = None
        self._running = RunningTrial(task.trial_id, title_of(task, self._keys), _steps(task))
        self._publish()

    def update(self, task: Task, state: TrialState) -> None:
        if self._running is None or time.monotonic() - self._written < INTERVAL_S:
            return
        self._running = replace(
            self._running,
            phase=state.phase,
            seconds=time.monotonic() - state.start,
            step=state.step,
            samples_seen=state.samples_seen,
            loss=state.loss if state.loss is None or math.isfinite(state.loss) else None,
        )
        self._publish()

    def finished(self, task: Task, record: Record) -> None:
        self._running = None
        self._publish()

    def _publish(self) -> None:
        self._written = time.monotonic()
        progress = RunProgress(
            at=time.time(),
            done=sum(not task.to_run for task in self._tasks),
            total=len(self._tasks),
            gone_s=self._clock.gone(),
            left_s=self._clock.left(),
            note=self._note,
            running=self._running,
        )
        self._write(PROGRESS, progress)

    def _write(self, name: str, content: object) -> None:
        if self._folder is not None:
            with suppress(OSError):
                atomic_write(self._folder / name, msgspec.json.encode(content))


def _steps(task: Task) -> int | None:
    """Return the steps of the training; None if the engine counts steps differently."""
    trial = task.trial
    batch, epochs = trial.params.get("batch_size"), trial.params.get("epochs")
    if not batch or not epochs or task.engine.differs(trial):
        return None
    steps: int = -(-(samples(trial) // epochs) // batch) * epochs
    return steps


class PlainLines(RunObserver):
    """An observer that prints a line when a trial starts and a line when it ends."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._waiting = ""
        self._shown: set[str] = set()
        self._keys: Sequence[str] = ()

    def planned(self, tasks: Sequence[Task]) -> None:
        self._keys = keys_of(tasks)

    def waiting(self, sentence: str) -> None:
        if sentence != self._waiting:
            self._waiting = sentence
            self._say(sentence)

    def started(self, task: Task) -> None:
        self._say(f"{title_of(task, self._keys)} ...")

    def update(self, task: Task, state: TrialState) -> None:
        for name, url in state.pages.items():
            if url not in self._shown:
                self._shown.add(url)
                self._say(f"{name}: {url}")

    def finished(self, task: Task, record: Record) -> None:
        left = self._clock.left()
        more = f" ({about(left)} left)" if left > 1 else ""
        self._say(f"{title_of(task, self._keys)}: {result(record)}{more}")


def keys_of(tasks: Sequence[Task]) -> list[str]:
    """Return the keys in which trials differ, besides engine, mode and workers."""
    settings = [_values(task) for task in tasks]
    return [key for key in varying_keys(settings) if key not in ("params", "mode", "workers", "engine")]


def setting_of(task: Task, keys: Sequence[str]) -> str:
    """Return a trial's values of these keys."""
    values = _values(task)
    return setting([values.get(key, "-") for key in keys])


def title_of(task: Task, keys: Sequence[str]) -> str:
    """Return the title of a trial, with its values of these keys."""
    trial, values = task.trial, _values(task)
    workers = "" if trial.mode == "single" else f", {count(trial.workers, 'worker')}"
    rest = [f", {key_text(key)} {display_value(values[key])}" for key in keys if key in values and key != "workload"]
    return f"{trial.engine} on {trial.workload} ({trial.mode}{workers}{''.join(rest)})"


def _values(task: Task) -> dict[str, Any]:
    return {**task.trial.identity(), **task.trial.public_params(), "settled": task.trial.settled}


def result(record: Record) -> str:
    """Return the result of a trial in half a line."""
    if record.status != "ok":
        return failure(record)
    verdict = record.equivalence["verdict"] or "not checked"
    return (
        f"{record.metric} {quality(record.result)}, train {seconds(record.train_s)}, cold {seconds(record.cold_s)}, "
        f"CPU {seconds(record.cpu_s)}, memory {size(record.peak_memory_bytes)}, {verdict}"
    )
