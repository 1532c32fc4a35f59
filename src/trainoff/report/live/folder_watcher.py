"""The lookout: one pair of eyes for all open pages, which looks about once a second while somebody watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainoff.records import Damaged, Record, Shelf
from trainoff.report.view import logs
from trainoff.report.view.runs import Course, Run, runs

LOOK_S = 1.0
REST = 4.0  # times what it takes to make the page's data: the machine is busy with something else


@dataclass(frozen=True)
class Sight:
    """What the lookout saw last; both numbers count up."""

    records: int  # changes with the records
    moment: int  # changes with the progress
    progress: dict[str, Any]


class Lookout:
    """Watches a folder from a thread of its own; nobody watching, nobody looks."""

    def __init__(self, folder: Path) -> None:
        self._shelf = Shelf(folder)
        self._course = Course(lambda: self._shelf.records)
        self._runs: list[Run] = []
        self._news = threading.Condition()
        self._looking = threading.Lock()
        self._sight = Sight(0, 0, {})
        self._looked = self._rested = -LOOK_S
        self._pending = False
        self._watchers = 0
        self._over = False
        self._thread = threading.Thread(target=self._keep_looking, name="lookout", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()
        self._thread.join()

    @property
    def over(self) -> bool:
        return self._over

    @property
    def records(self) -> list[Record]:
        """All that was there at the last look."""
        return self._shelf.records

    @property
    def damaged(self) -> list[Damaged]:
        return self._shelf.damaged

    @contextmanager
    def watching(self, most: int) -> Iterator[bool]:
        """While somebody watches; whether there was room for one more."""
        with self._news:
            room = self._watchers < most
            self._watchers += room
            self._news.notify_all()
        try:
            yield room
        finally:
            with self._news:
                self._watchers -= room

    def sight(self) -> Sight:
        """What there is to see, not older than a second."""
        self._look()
        return self._sight

    def wait(self, before: Sight, seconds: float) -> Sight:
        """What there is to see once it is something else than before, or after some seconds."""
        with self._news:
            self._news.wait_for(lambda: self._over or self._sight != before, seconds)
            return self._sight

    def rest(self, cost_s: float) -> None:
        """After what took so long, be quiet about new records for some time."""
        self._rested = max(self._rested, time.monotonic() + REST * cost_s)

    def log(self, trial_id: str) -> str | None:
        """The log of a trial that is under way or has a record; None if no such trial is known."""
        self._look()
        for run in self._runs:
            if run.trial and run.trial.trial_id == trial_id and (staged := run.staged()):
                return logs.whole(staged)
        folder = self._shelf.folder_of(trial_id)
        return logs.whole(folder) if folder else None

    def _keep_looking(self) -> None:
        while not self._over:
            with self._news:
                self._news.wait_for(lambda: self._over or self._watchers)
            self._look()
            with self._news:
                self._news.wait_for(lambda: self._over, LOOK_S)

    def _look(self) -> None:
        """Look, unless somebody did within the last moments."""
        with self._looking:
            if time.monotonic() - self._looked < LOOK_S / 2:
                return
            self._runs = runs(self._shelf.folder)  # before the records: a run that has ended has left all of them
            with suppress(OSError):  # a folder went away meanwhile; the next look sees it
                self._pending = self._shelf.look() or self._pending
            progress = self._course.progress(self._runs)
            self._looked = time.monotonic()
            tell = self._pending and self._looked >= self._rested
            self._pending = self._pending and not tell
            self._see(progress, tell)

    def _see(self, progress: dict[str, Any], records: bool) -> None:
        before = self._sight
        if progress == before.progress and not records:
            return
        with self._news:
            moment = before.moment + (progress != before.progress)
            self._sight = Sight(before.records + records, moment, progress)
            self._news.notify_all()
