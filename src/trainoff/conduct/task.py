"""Tasks: the trials of a study with what is known of them, and which of them to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from trainoff import data, engines
from trainoff.conduct.refusal import cannot
from trainoff.engines import Engine
from trainoff.records import Record, Store
from trainoff.runner.events import Story
from trainoff.study import Study, Trial


@dataclass
class Task:
    """A trial with all that the conductor knows of it."""

    trial: Trial
    engine: Engine
    trial_id: str
    record: Record | None = None  # the newest attempt, if there is one
    again: bool = False  # whether to run it although there is a record
    give_up: Callable[[Story], str | None] | None = None  # why it need not go on, asked while it runs

    @property
    def to_run(self) -> bool:
        return self.record is None or self.again


@dataclass
class Outcome:
    """What a run came to."""

    tasks: list[Task]
    interrupted: bool = False

    @property
    def records(self) -> list[Record]:
        return [task.record for task in self.tasks if task.record]


def prepare(study: Study, store: Store, retry: Sequence[str] = ()) -> list[Task]:
    """The trials of a study in the order they run, each with its newest record; marks which to run again."""
    tasks, newest, identity = [], store.newest(), cache(data.identity)
    known: dict[str, tuple[Engine, str, str]] = {}
    for trial in study.trials():
        if trial.engine not in known:
            engine = engines.broken_or(trial.engine)
            known[trial.engine] = engine, engines.version_of(engine), engines.source_hash(engine)
        engine, version, source = known[trial.engine]
        trial_id = trial.id(version, source, identity(trial.data))
        record = newest.get(trial_id)
        again = record is not None and _deserves_another_try(record, trial, engine, retry)
        tasks.append(Task(trial, engine, trial_id, record, again))
    return tasks


def _deserves_another_try(record: Record, trial: Trial, engine: Engine, retry: Sequence[str]) -> bool:
    """What was refused before it began is asked again: it costs nothing, and what was missing may be there now."""
    if record.unfinished or record.status in retry or ("failed" in retry and record.failed):
        return True
    refused = record.status == "unsupported" and record.phase in (None, "missing")
    return refused and cannot(trial, engine) is None
