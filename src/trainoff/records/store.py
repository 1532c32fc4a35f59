"""The folder store: a reader sees a whole record or none, and nothing is ever rewritten."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainoff.errors import TrainoffError
from trainoff.records.reading import FILES, Damaged, read, scan
from trainoff.records.schema import Record

STAGING = ".staging"
STUDY_COPY = "study.toml"  # beside the records: what was asked for, and by which command
YOUNG_S = 60.0


class Store:
    """The records of one study: `<folder>/<trial-id>/`, a retry as `<trial-id>.2/`, `.3/`, ..."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the folder, try to write to it, and clear away what a killed run left half done."""
        try:
            (self.folder / STAGING).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder / STAGING) as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
        except OSError as error:
            raise TrainoffError(cannot_write(self.folder, error)) from error
        for left in (self.folder / STAGING).iterdir():
            if abandoned(left):
                shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def stage(self, trial_id: str) -> Iterator[Path]:
        """A scratch folder that becomes a record by `commit`, and is gone afterwards in any case."""
        folder = Path(tempfile.mkdtemp(prefix=f"{trial_id}-", dir=self.folder / STAGING)).resolve()
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held while this process lives: says that the folder is in use
            (folder / "unlocked").rename(folder / "lock")  # nobody ever sees a lock that is not held
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, record: Record, staged: Path) -> Path:
        """Turn a staged folder into a record: write, sync, rename. Where the disk is full, save it elsewhere."""
        try:
            return self._commit(record, staged)
        except OSError as error:
            rescued = _rescue(record, staged)
            raise TrainoffError(
                f"{cannot_write(self.folder, error)}; the finished trial is kept in {rescued}"
            ) from error

    def _commit(self, record: Record, staged: Path) -> Path:
        whole = staged / "record"
        whole.mkdir()
        (staged / "record.json").write_text(_text(record))
        for name in FILES:
            if (staged / name).exists():
                (staged / name).rename(whole / name)
                _sync(whole / name)
        _sync(whole)
        while True:
            target = self.folder / _folder_name(record)
            try:
                whole.rename(target)
            except OSError:
                if not target.exists():
                    raise
                record.attempt += 1  # somebody else finished this attempt meanwhile; keep both
                (whole / "record.json").write_text(_text(record))
                _sync(whole / "record.json")
                continue
            _sync(self.folder)
            return target

    def newest(self) -> dict[str, Record]:
        """The newest attempt at every trial, by trial id."""
        if not self.folder.is_dir():
            return {}
        return {record.trial_id: record for record in sorted(scan(self.folder)[0], key=lambda record: record.attempt)}

    def latest(self, trial_id: str) -> Record | None:
        """The newest attempt at a trial, if there is one that can be read."""
        records = [record for record in self.attempts(trial_id) if isinstance(record, Record)]
        return max(records, key=lambda record: record.attempt, default=None)

    def attempts(self, trial_id: str) -> Iterator[Record | Damaged]:
        for folder in [self.folder / trial_id, *self.folder.glob(f"{trial_id}.*")]:
            if folder.is_dir():
                yield read(folder)


def _folder_name(record: Record) -> str:
    return record.trial_id if record.attempt == 1 else f"{record.trial_id}.{record.attempt}"


def folder_of(folder: Path, record: Record) -> Path:
    """Where a record lies, below a study's folder, a folder of studies, or its own; folders may have been renamed."""
    name = _folder_name(record)
    places = [folder / name, folder / record.study / name]
    if found := next((place for place in places if place.exists()), None):
        return found
    if (folder / "record.json").exists():
        return folder
    return next(iter(sorted(folder.glob(f"*/{name}"))), folder / name)


def abandoned(staged: Path) -> bool:
    """Whether the process that staged it is gone; a folder without a lock may be just being made."""
    try:
        with (staged / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several may ask at once, and need not write
            return True
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - staged.stat().st_mtime > YOUNG_S
        return False
    except OSError:
        return False


def _text(record: Record) -> str:
    return json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rescue(record: Record, staged: Path) -> Path:
    """Keep what was measured in the machine's temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"trainoff-{record.trial_id}-"))
    (folder / "record.json").write_text(_text(record))
    for source in [staged, staged / "record"]:
        for name in FILES[1:]:
            if (source / name).is_dir():
                shutil.copytree(source / name, folder / name, dirs_exist_ok=True)
            elif (source / name).exists():
                shutil.copy(source / name, folder / name)
    return folder


def cannot_write(folder: Path, error: OSError) -> str:
    """The sentence for a result folder that takes no files."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space or choose another folder with --out" if full else "choose another folder with --out"
    return f"{folder}: results cannot be written there ({error.strerror or error}); {advice}"
