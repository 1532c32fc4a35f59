"""The progress of a run: the file that shows it to whoever looks at the folder, and plain lines for logs and pipes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from trainoff.analysis import failure, varying_keys
from trainoff.analysis.format import about, count, display_value, key_text, quality, seconds, size
from trainoff.files import atomic_write
from trainoff.records import Record, Store
from trainoff.report.tables import setting
from trainoff.runner.estimate import Clock, samples
from trainoff.runner.events import TrialState
from trainoff.runner.runner import Task

BULLETIN = "bulletin.json"
PLAN = "plan.json"
EVERY_S = 1.0  # more often nobody needs to know, and the running trial wants the machine


@dataclass(frozen=True)
class UnderWay:
    """The trial that a run is busy with."""

    trial_id: str
    title: str
    steps: int | None  # that it will take; None where the engine counts in its own way
    phase: str = "starting"
    seconds: float = 0.0
    step: int = 0
    samples_seen: int = 0
    loss: float | None = None


@dataclass(frozen=True)
class TrialPost:
    """What a bulletin says."""

    at: float  # the time of day, in seconds
    done: int
    total: int
    gone_s: float
    left_s: float
    note: str | None
    running: UnderWay | None


class ProgressFile:
    """A view that writes down where the run stands, at most once a second, in a scratch folder of its own.

    The folder is locked while the process lives and gone once the run is over: one whose lock is free is that of a
    run that was killed. A bulletin that cannot be written is left out; no run fails for it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._folder: Path | None = None
        self._stack = ExitStack()
        self._tasks: Sequence[Task] = ()
        self._keys: Sequence[str] = ()
        self._running: UnderWay | None = None
        self._note: str | None = None
        self._written = -math.inf

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._folder = self._stack.enter_context(self._store.stage("run"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def planned(self, tasks: Sequence[Task]) -> None:
        self._tasks, self._keys = tasks, keys_of(tasks)
        self._write(PLAN, [task.trial_id for task in tasks])
        self._post()

    def waiting(self, sentence: str) -> None:
        if sentence != self._note:
            self._note = sentence
            self._post()

    def started(self, task: Task) -> None:
        self._note = None
        self._running = UnderWay(task.trial_id, title_of(task, self._keys), _steps(task))
        self._post()

    def update(self, task: Task, state: TrialState) -> None:
        if self._running is None or time.monotonic() - self._written < EVERY_S:
            return
        self._running = replace(
            self._running,
            phase=state.phase,
            seconds=time.monotonic() - state.start,
            step=state.step,
            samples_seen=state.samples_seen,
            loss=state.loss if state.loss is None or math.isfinite(state.loss) else None,
        )
        self._post()

    def finished(self, task: Task, record: Record) -> None:
        self._running = None
        self._post()

    def _post(self) -> None:
        self._written = time.monotonic()
        post = TrialPost(
            at=time.time(),
            done=sum(not task.to_run for task in self._tasks),
            total=len(self._tasks),
            gone_s=self._clock.gone(),
            left_s=self._clock.left(),
            note=self._note,
            running=self._running,
        )
        self._write(BULLETIN, post)

    def _write(self, name: str, content: object) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            atomic_write(self._folder / name, msgspec.json.encode(content))


def _steps(task: Task) -> int | None:
    """How many steps the training will take; None where the engine counts in its own way."""
    trial = task.trial
    batch, epochs = trial.params.get("batch_size"), trial.params.get("epochs")
    if not batch or not epochs or task.engine.differs(trial):
        return None
    steps: int = -(-(samples(trial) // epochs) // batch) * epochs
    return steps


class PlainLines:
    """One line when a trial starts and one when it ends."""

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
    """The keys in which trials differ beyond engine, mode and workers."""
    settings = [_values(task) for task in tasks]
    return [key for key in varying_keys(settings) if key not in ("params", "mode", "workers", "engine")]


def setting_of(task: Task, keys: Sequence[str]) -> str:
    """A trial's values of those keys."""
    values = _values(task)
    return setting([values.get(key, "-") for key in keys])


def title_of(task: Task, keys: Sequence[str]) -> str:
    """A trial as a person would name it, with its values of those keys."""
    trial, values = task.trial, _values(task)
    workers = "" if trial.mode == "single" else f", {count(trial.workers, 'worker')}"
    rest = [f", {key_text(key)} {display_value(values[key])}" for key in keys if key in values and key != "workload"]
    return f"{trial.engine} on {trial.workload} ({trial.mode}{workers}{''.join(rest)})"


def _values(task: Task) -> dict[str, Any]:
    return {**task.trial.identity(), **task.trial.public_params(), "settled": task.trial.settled}


def result(record: Record) -> str:
    """How a trial ended, in half a line."""
    if record.status != "ok":
        return failure(record)
    verdict = record.equivalence["verdict"] or "not checked"
    return (
        f"{record.metric} {quality(record.result)}, train {seconds(record.train_s)}, cold {seconds(record.cold_s)}, "
        f"CPU {seconds(record.cpu_s)}, memory {size(record.peak_memory_bytes)}, {verdict}"
    )
