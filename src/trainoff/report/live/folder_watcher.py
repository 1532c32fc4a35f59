"""What the live view shows of a folder: its records, the runs under way, the page made of them, and the ends of logs.

One thread looks at the folder about once a second for all open pages, and only while a page is open.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from trainoff.analysis import newest
from trainoff.records import STAGING, DamagedRecord, Record, RecordCache, abandoned
from trainoff.report.html import compose, render
from trainoff.report.progress import BULLETIN, PLAN, TrialPost, UnderWay

LOOK_S = 1.0
REST = 4.0  # times what it takes to make the page's data: the machine is busy with something else


@dataclass(frozen=True)
class FolderState:
    """What the watcher saw last; both numbers count up."""

    records: int  # changes with the records
    moment: int  # changes with the progress
    progress: dict[str, Any]


class FolderWatcher:
    """Watches a folder from a thread of its own; nobody watching, nobody looks."""

    def __init__(self, folder: Path) -> None:
        self._cache = RecordCache(folder)
        self._progress = TrialProgress(lambda: self._cache.records)
        self._runs: list[LiveRun] = []
        self._news = threading.Condition()
        self._looking = threading.Lock()
        self._sight = FolderState(0, 0, {})
        self._looked = self._rested = -LOOK_S
        self._pending = False
        self._watchers = 0
        self._over = False
        self._thread = threading.Thread(target=self._keep_looking, name="folder watcher", daemon=True)

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
        return self._cache.records

    @property
    def damaged(self) -> list[DamagedRecord]:
        return self._cache.damaged

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

    def sight(self) -> FolderState:
        """What there is to see, not older than a second."""
        self._look()
        return self._sight

    def wait(self, before: FolderState, seconds: float) -> FolderState:
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
                return whole(staged)
        folder = self._cache.folder_of(trial_id)
        return whole(folder) if folder else None

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
            self._runs = runs(self._cache.folder)  # before the records: a run that has ended has left all of them
            with suppress(OSError):  # a folder went away meanwhile; the next look sees it
                self._pending = self._cache.refresh() or self._pending
            progress = self._progress.progress(self._runs)
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
            self._sight = FolderState(before.records + records, moment, progress)
            self._news.notify_all()


_POST = msgspec.json.Decoder(TrialPost)  # checks the type of every field
_PLAN = msgspec.json.Decoder(list[str])


@dataclass(frozen=True)
class LiveRun:
    """One run, as its newest bulletin tells it."""

    folder: Path  # its scratch folder
    told: TrialPost
    alive: bool

    @property
    def age(self) -> float:
        """Seconds since it was told."""
        return max(0.0, time.time() - self.told.at) if self.alive else 0.0

    @property
    def trial(self) -> UnderWay | None:
        """The trial that it has under way."""
        return self.told.running if self.alive else None

    def staged(self) -> Path | None:
        """The scratch folder of that trial."""
        name = self.trial.trial_id if self.trial else None
        with suppress(OSError):
            for entry in self.folder.parent.iterdir():
                if name and entry.name.rpartition("-")[0] == name:
                    return entry
        return None


def runs(folder: Path) -> list[LiveRun]:
    """The runs in a study's folder, or in a folder of studies."""
    found = []
    for scratch in _stagings(folder):
        with suppress(OSError):
            for entry in os.scandir(scratch):
                if entry.name.startswith("run-") and (run := _read(Path(entry.path))):
                    found.append(run)
    return found


def _stagings(folder: Path) -> list[Path]:
    if (folder / STAGING).is_dir():
        return [folder / STAGING]
    with suppress(OSError):
        return [scratch for inside in folder.iterdir() if (scratch := inside / STAGING).is_dir()]
    return []


def _read(folder: Path) -> LiveRun | None:
    dead = abandoned(folder)  # asked first: what a living run said cannot be older than that
    try:
        return LiveRun(folder, _POST.decode((folder / BULLETIN).read_bytes()), not dead)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):  # just being made or removed, or by another version
        return None


@dataclass
class TrialProgress:
    """How far it all is: what the runs say, and after their end what the records say."""

    records: Callable[[], Sequence[Record]]
    _plans: dict[Path, tuple[str, ...]] = field(default_factory=dict)  # the trials of the last runs that were seen
    _last: dict[str, Any] | None = None  # what was told of them while they were alive

    def progress(self, found: Sequence[LiveRun]) -> dict[str, Any]:
        """What pages are told, from the runs that there are now."""
        if found:
            self._plans = {run.folder: self._plans.get(run.folder) or _plan(run.folder) for run in found}
        if alive := [run for run in found if run.alive]:
            idle = all(run.trial is None and run.told.note for run in alive)
            self._last = self._told(alive, "waiting" if idle else "running")
            return self._last
        if found:
            return self._told(found, "stopped")
        if self._last:
            return self._after(self._last)
        newest = {record.trial_id: record for record in sorted(self.records(), key=lambda one: one.attempt)}
        done = sum(not record.unfinished for record in newest.values())
        state = "waiting" if not newest else "ended" if done == len(newest) else "stopped"
        return {**self._told([], state), "done": done}

    def _after(self, last: dict[str, Any]) -> dict[str, Any]:
        """The runs are gone: whether they ended or were stopped is told by what they had planned."""
        there = {record.trial_id for record in self.records() if not record.unfinished}
        plans = {trial_id for plan in self._plans.values() for trial_id in plan}
        state = "ended" if plans <= there else "stopped"
        return {**last, "state": state, "done": len(plans & there), "left_s": None, "note": None, "running": []}

    def _told(self, found: Sequence[LiveRun], state: str) -> dict[str, Any]:
        """The sum of the runs; those with the same plan share the work. Times go on since they were told."""
        done: dict[tuple[str, ...], int] = {}
        for run in found:
            plan = self._plans[run.folder]
            done[plan] = max(done.get(plan, 0), run.told.done)
        going = found and state in ("running", "waiting")
        return {
            "done": sum(done.values()),
            "total": sum(map(len, done)) if found else None,
            "left_s": max(0.0, max(run.told.left_s - run.age for run in found)) if going else None,
            "gone_s": max((run.told.gone_s + run.age for run in found), default=0.0),
            "state": state,
            "note": next((run.told.note for run in found if run.alive and run.told.note), None),
            "running": [_trial(run, run.trial) for run in found if run.trial],
        }


def _plan(folder: Path) -> tuple[str, ...]:
    with suppress(OSError, msgspec.DecodeError):
        return tuple(_PLAN.decode((folder / PLAN).read_bytes()))
    return ()


def _trial(run: LiveRun, trial: UnderWay) -> dict[str, Any]:
    staged = run.staged()
    return {
        **asdict(trial),
        "seconds": trial.seconds + run.age,
        "log": last_lines(staged) if staged else [],
    }


class PageCache:
    """What the page shows, as of the newest records that the watcher has told of."""

    def __init__(self, folder: Path, watcher: FolderWatcher) -> None:
        self._folder = folder
        self._watcher = watcher
        self._making = threading.Lock()
        self._version = -1
        self._json = b""
        self._page = b""

    def json(self) -> tuple[int, bytes]:
        """The newest attempt at every trial, and the version of the records that this is."""
        with self._making:
            self._renew()
            if not self._json:
                records = [record.to_json() for record in newest(self._watcher.records)]
                self._json = json.dumps({"folder": str(self._folder), "records": records}).encode()
            return self._version, self._json

    def page(self) -> bytes:
        """The page with its charts in it."""
        with self._making:
            self._renew()
            if not self._page:
                began = time.monotonic()
                content = compose(self._folder, self._watcher.records, self._watcher.damaged)
                self._page = render(content, live=True).encode()
                self._watcher.rest(time.monotonic() - began)
            return self._page

    def _renew(self) -> None:
        version = self._watcher.sight().records
        if version != self._version:
            self._json = self._page = b""
            self._version = version


MOST_BYTES = 256 * 1024  # of one file, for a page that shows a log
MOST_FILES = 32
LAST_LINES = 12
SOME_BYTES = 8192  # hold that many lines
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(staged: Path) -> list[str]:
    """The last lines of whichever process of a trial under way spoke last."""
    spoken = sorted(files(staged), key=_when)
    return tail(spoken[-1], SOME_BYTES).splitlines()[-LAST_LINES:] if spoken else []


def whole(folder: Path) -> str:
    """The log of a trial: its own, then that of every process of the cluster under its role."""
    parts = []
    for path in files(folder):
        if said := tail(path, MOST_BYTES):
            parts.append(said if path.parent == folder else f"\n==== {path.stem} ====\n{said}")
    return "".join(parts)


def files(folder: Path) -> list[Path]:
    """The logs in a folder; a record has one, a trial under way one of each process besides."""
    return [path for path in [folder / "log.txt", *sorted(folder.glob("logs/*.txt"))[:MOST_FILES]] if path.exists()]


def tail(path: Path, most: int) -> str:
    """The end of a log as text, without colours; only of an ordinary file, wherever a link might lead."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            return ""
        file.seek(max(0, about.st_size - most))
        text = file.read(most).decode(errors="replace")
    if about.st_size > most:
        text = text.partition("\n")[2]  # what is left of the first line says little
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # of a progress bar its last state
    return "\n".join(_COLOURS.sub("", line) for line in lines)


def _when(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
