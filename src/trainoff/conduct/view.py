"""Whoever watches a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainoff.conduct.task import Task
from trainoff.records import Record
from trainoff.runner.events import Story


class View(Protocol):
    """Whoever watches a run: a live table, plain lines, a notebook. Every method may do nothing."""

    def planned(self, tasks: Sequence[Task]) -> None:
        """Before the first trial: all trials in order, those that are already done included."""

    def waiting(self, sentence: str) -> None:
        """Another run holds the machine."""

    def started(self, task: Task) -> None:
        """A trial's processes are about to start."""

    def update(self, task: Task, story: Story) -> None:
        """At least twice a second while a trial runs; must be cheap."""

    def finished(self, task: Task, record: Record) -> None:
        """A record has been stored, or another run has stored it meanwhile."""


class Silent:
    """A view that shows nothing, and what other views leave out."""

    def planned(self, tasks: Sequence[Task]) -> None: ...
    def waiting(self, sentence: str) -> None: ...
    def started(self, task: Task) -> None: ...
    def update(self, task: Task, story: Story) -> None: ...
    def finished(self, task: Task, record: Record) -> None: ...


class Together:
    """Several views of one run; each is told everything, in their order."""

    def __init__(self, *views: View) -> None:
        self._views = views

    def planned(self, tasks: Sequence[Task]) -> None:
        for view in self._views:
            view.planned(tasks)

    def waiting(self, sentence: str) -> None:
        for view in self._views:
            view.waiting(sentence)

    def started(self, task: Task) -> None:
        for view in self._views:
            view.started(task)

    def update(self, task: Task, story: Story) -> None:
        for view in self._views:
            view.update(task, story)

    def finished(self, task: Task, record: Record) -> None:
        for view in self._views:
            view.finished(task, record)
