"""Runs that are under way in a folder, or were killed there: what their bulletins say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trainoff.records import STAGING, Record, abandoned
from trainoff.report.progress import BULLETIN, PLAN, Post, UnderWay
from trainoff.report.view.logs import last_lines

_POST = msgspec.json.Decoder(Post)  # checks the type of every field
_PLAN = msgspec.json.Decoder(list[str])


@dataclass(frozen=True)
class Run:
    """One run, as its newest bulletin tells it."""

    folder: Path  # its scratch folder
    told: Post
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


def runs(folder: Path) -> list[Run]:
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


def _read(folder: Path) -> Run | None:
    dead = abandoned(folder)  # asked first: what a living run said cannot be older than that
    try:
        return Run(folder, _POST.decode((folder / BULLETIN).read_bytes()), not dead)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):  # just being made or removed, or by another version
        return None


@dataclass
class Course:
    """How far it all is: what the runs say, and after their end what the records say."""

    records: Callable[[], Sequence[Record]]
    _plans: dict[Path, tuple[str, ...]] = field(default_factory=dict)  # the trials of the last runs that were seen
    _last: dict[str, Any] | None = None  # what was told of them while they were alive

    def progress(self, found: Sequence[Run]) -> dict[str, Any]:
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

    def _told(self, found: Sequence[Run], state: str) -> dict[str, Any]:
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


def _trial(run: Run, trial: UnderWay) -> dict[str, Any]:
    staged = run.staged()
    return {
        **asdict(trial),
        "seconds": trial.seconds + run.age,
        "log": last_lines(staged) if staged else [],
    }
