"""The state of a folder for the live view: its records, the runs in progress, the page, and the ends of logs.

One thread checks the folder about once a second for all open pages, and only while a page is open.
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
from typing import Any, Self

import msgspec

from trainoff.analysis import newest
from trainoff.records import STAGING, Record, RecordCache, abandoned
from trainoff.report.html import compose, render
from trainoff.report.progress import PLAN, PROGRESS, RunningTrial, RunProgress

INTERVAL_S = 1.0
BACK_OFF = 4.0  # pause after making a page, as a multiple of the time that took


@dataclass(frozen=True)
class FolderState:
    """The state of the folder; both version numbers count up."""

    records: int  # changes with the records
    moment: int  # changes with the progress
    progress: dict[str, Any]


class FolderWatcher:
    """Watches a folder in a thread, as long as there are subscribers."""

    def __init__(self, folder: Path) -> None:
        self.cache = RecordCache(folder)
        self._progress = TrialProgress(lambda: self.cache.records)
        self._runs: list[LiveRun] = []
        self._changed = threading.Condition()
        self._refreshing = threading.Lock()
        self._state = FolderState(0, 0, {})
        self._refreshed_at = self._backed_off_until = -INTERVAL_S
        self._pending = False  # whether there are records that have not been announced
        self._subscribers = 0
        self.over = False  # whether the view has ended
        self._thread = threading.Thread(target=self._watch, name="folder watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()
        self._thread.join()

    @contextmanager
    def subscribed(self, most: int) -> Iterator[bool]:
        """Subscribe during the block; yields False if there are too many subscribers already."""
        with self._changed:
            accepted = self._subscribers < most
            self._subscribers += accepted
            self._changed.notify_all()
        try:
            yield accepted
        finally:
            with self._changed:
                self._subscribers -= accepted

    def state(self) -> FolderState:
        """Return the state of the folder, at most a second old."""
        self._refresh()
        return self._state

    def wait(self, before: FolderState, seconds: float) -> FolderState:
        """Return the state when it differs from `before`, or after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._state != before, seconds)
            return self._state

    def back_off(self, cost_s: float) -> None:
        """Announce no new records for a while after making a page, which took `cost_s`: the machine is busy."""
        self._backed_off_until = max(self._backed_off_until, time.monotonic() + BACK_OFF * cost_s)

    def log(self, trial_id: str) -> str | None:
        """Return the log of a running or recorded trial; None if the trial is unknown."""
        self._refresh()
        for run in self._runs:
            if run.trial and run.trial.trial_id == trial_id and (staged := run.staged()):
                return full_log(staged)
        folder = self.cache.folder_of(trial_id)
        return full_log(folder) if folder else None

    def _watch(self) -> None:
        while not self.over:
            with self._changed:
                self._changed.wait_for(lambda: self.over or self._subscribers)
            self._refresh()
            with self._changed:
                self._changed.wait_for(lambda: self.over, INTERVAL_S)

    def _refresh(self) -> None:
        """Check the folder, unless that was done a moment ago."""
        with self._refreshing:
            if time.monotonic() - self._refreshed_at < INTERVAL_S / 2:
                return
            self._runs = find_runs(self.cache.folder)  # before the records: a run that has ended has stored all of its
            with suppress(OSError):  # a folder was removed meanwhile; the next refresh notices
                self._pending = self.cache.refresh() or self._pending
            progress = self._progress.progress(self._runs)
            self._refreshed_at = time.monotonic()
            announce = self._pending and self._refreshed_at >= self._backed_off_until
            self._pending = self._pending and not announce
            before = self._state
            if announce or progress != before.progress:
                with self._changed:
                    moment = before.moment + (progress != before.progress)
                    self._state = FolderState(before.records + announce, moment, progress)
                    self._changed.notify_all()


_PROGRESS = msgspec.json.Decoder(RunProgress)  # checks the type of every field
_PLAN = msgspec.json.Decoder(list[str])


@dataclass(frozen=True)
class LiveRun:
    """A run, as of its progress file."""

    folder: Path  # its scratch folder
    progress: RunProgress
    alive: bool

    @property
    def age(self) -> float:
        """Seconds since the progress file was written."""
        return max(0.0, time.time() - self.progress.at) if self.alive else 0.0

    @property
    def trial(self) -> RunningTrial | None:
        return self.progress.running if self.alive else None

    def staged(self) -> Path | None:
        """Return the scratch folder of the running trial."""
        if trial := self.trial:
            with suppress(OSError):
                entries = self.folder.parent.iterdir()
                return next((entry for entry in entries if entry.name.rpartition("-")[0] == trial.trial_id), None)
        return None


def find_runs(folder: Path) -> list[LiveRun]:
    """Return the runs in a study's folder, or in a folder of studies."""
    pattern = f"{STAGING}/run-*" if (folder / STAGING).is_dir() else f"*/{STAGING}/run-*"
    with suppress(OSError):  # such as a folder that was removed meanwhile
        return [run for entry in folder.glob(pattern) if (run := _read(entry))]
    return []


def _read(folder: Path) -> LiveRun | None:
    dead = abandoned(folder)  # before reading, so that the progress of a run that is alive is not older than that
    try:
        return LiveRun(folder, _PROGRESS.decode((folder / PROGRESS).read_bytes()), not dead)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):  # being created or removed, or of another version
        return None


@dataclass
class TrialProgress:
    """The progress of all runs of a folder; after their end, that of the trials they had planned."""

    records: Callable[[], Sequence[Record]]
    _plans: dict[Path, tuple[str, ...]] = field(default_factory=dict)  # the trials of the latest runs
    _last: dict[str, Any] | None = None  # their progress while they were alive

    def progress(self, runs: Sequence[LiveRun]) -> dict[str, Any]:
        """Return what pages are sent, given the present runs."""
        if runs:
            self._plans = {run.folder: self._plans.get(run.folder) or _plan(run.folder) for run in runs}
        if alive := [run for run in runs if run.alive]:
            waiting = all(run.trial is None and run.progress.note for run in alive)
            self._last = self._sum(alive, "waiting" if waiting else "running")
            return self._last
        if runs:
            return self._sum(runs, "stopped")
        if self._last:
            return self._after_end(self._last)
        latest = {record.trial_id: record for record in sorted(self.records(), key=lambda one: one.attempt)}
        done = sum(not record.unfinished for record in latest.values())
        state = "waiting" if not latest else "ended" if done == len(latest) else "stopped"
        return {**self._sum([], state), "done": done}

    def _after_end(self, last: dict[str, Any]) -> dict[str, Any]:
        """Return the progress after the runs are gone: ended if all planned trials have a record, otherwise stopped."""
        recorded = {record.trial_id for record in self.records() if not record.unfinished}
        planned = {trial_id for plan in self._plans.values() for trial_id in plan}
        state = "ended" if planned <= recorded else "stopped"
        return {**last, "state": state, "done": len(planned & recorded), "left_s": None, "note": None, "running": []}

    def _sum(self, runs: Sequence[LiveRun], state: str) -> dict[str, Any]:
        """Return the total of the runs; those with the same plan share the work. Times include the file's age."""
        done: dict[tuple[str, ...], int] = {}
        for run in runs:
            plan = self._plans[run.folder]
            done[plan] = max(done.get(plan, 0), run.progress.done)
        active = runs and state in ("running", "waiting")
        return {
            "done": sum(done.values()),
            "total": sum(map(len, done)) if runs else None,
            "left_s": max(0.0, max(run.progress.left_s - run.age for run in runs)) if active else None,
            "gone_s": max((run.progress.gone_s + run.age for run in runs), default=0.0),
            "state": state,
            "note": next((run.progress.note for run in runs if run.alive and run.progress.note), None),
            "running": [_trial(run, run.trial) for run in runs if run.trial],
        }


def _plan(folder: Path) -> tuple[str, ...]:
    with suppress(OSError, msgspec.DecodeError):
        return tuple(_PLAN.decode((folder / PLAN).read_bytes()))
    return ()


def _trial(run: LiveRun, trial: RunningTrial) -> dict[str, Any]:
    staged = run.staged()
    log = last_lines(staged) if staged else []
    return {**asdict(trial), "seconds": trial.seconds + run.age, "log": log}


class PageCache:
    """The page and its data, made once per version of the records."""

    def __init__(self, folder: Path, watcher: FolderWatcher) -> None:
        self._folder = folder
        self._watcher = watcher
        self._lock = threading.Lock()
        self._version = -1
        self._json = b""
        self._page = b""

    def json(self) -> tuple[int, bytes]:
        """Return the newest attempt at every trial as JSON, and the version of the records."""
        with self._lock:
            self._update()
            if not self._json:
                records = [record.to_json() for record in newest(self._watcher.cache.records)]
                self._json = json.dumps({"folder": str(self._folder), "records": records}).encode()
            return self._version, self._json

    def page(self) -> bytes:
        """Return the page."""
        with self._lock:
            self._update()
            if not self._page:
                start = time.monotonic()
                content = compose(self._folder, self._watcher.cache.records, self._watcher.cache.damaged)
                self._page = render(content, live=True).encode()
                self._watcher.back_off(time.monotonic() - start)
            return self._page

    def _update(self) -> None:
        version = self._watcher.state().records
        if version != self._version:
            self._json = self._page = b""
            self._version = version


MOST_BYTES = 256 * 1024  # of each file of a full log
MOST_FILES = 32
LAST_LINES = 12
LAST_BYTES = 8192  # enough for the last lines
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(staged: Path) -> list[str]:
    """Return the last lines of the log of a running trial that was written to last."""
    paths = sorted(_log_files(staged), key=_modified)
    return tail(paths[-1], LAST_BYTES).splitlines()[-LAST_LINES:] if paths else []


def full_log(folder: Path) -> str:
    """Return the log of a trial: its own, then that of every process of the cluster under its role."""
    parts = []
    for path in _log_files(folder):
        if text := tail(path, MOST_BYTES):
            parts.append(text if path.parent == folder else f"\n==== {path.stem} ====\n{text}")
    return "".join(parts)


def _log_files(folder: Path) -> list[Path]:
    """Return the logs in a folder: a record has one, a running trial has one of each process besides."""
    return [path for path in [folder / "log.txt", *sorted(folder.glob("logs/*.txt"))[:MOST_FILES]] if path.exists()]


def tail(path: Path, most: int) -> str:
    """Return the end of a log as text, without colours; only of a regular file, and no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        file.seek(max(0, status.st_size - most))
        text = file.read(most).decode(errors="replace")
    if status.st_size > most:
        text = text.partition("\n")[2]  # without the rest of a line
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # of a progress bar its last state
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def _modified(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
