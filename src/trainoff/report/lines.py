"""A run as plain lines: for logs, pipes and continuous integration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainoff.analysis import failure, varying
from trainoff.analysis.format import about, called, count, quality, seconds, shown, size
from trainoff.records import Record
from trainoff.report.tables import setting
from trainoff.runner.estimate import Clock
from trainoff.runner.events import Story
from trainoff.runner.runner import Task


class Lines:
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

    def update(self, task: Task, story: Story) -> None:
        for name, url in story.pages.items():
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
    return [key for key in varying(settings) if key not in ("params", "mode", "workers", "engine")]


def setting_of(task: Task, keys: Sequence[str]) -> str:
    """A trial's values of those keys."""
    values = _values(task)
    return setting([values.get(key, "-") for key in keys])


def title_of(task: Task, keys: Sequence[str]) -> str:
    """A trial as a person would name it, with its values of those keys."""
    trial, values = task.trial, _values(task)
    workers = "" if trial.mode == "single" else f", {count(trial.workers, 'worker')}"
    rest = [f", {called(key)} {shown(values[key])}" for key in keys if key in values and key != "workload"]
    return f"{trial.engine} on {trial.workload} ({trial.mode}{workers}{''.join(rest)})"


def _values(task: Task) -> dict[str, Any]:
    return {**task.trial.identity(), **task.trial.shown(), "settled": task.trial.settled}


def result(record: Record) -> str:
    """How a trial ended, in half a line."""
    if record.status != "ok":
        return failure(record)
    verdict = record.equivalence["verdict"] or "not checked"
    return (
        f"{record.metric} {quality(record.result)}, train {seconds(record.train_s)}, cold {seconds(record.cold_s)}, "
        f"CPU {seconds(record.cpu_s)}, memory {size(record.peak_memory_bytes)}, {verdict}"
    )
