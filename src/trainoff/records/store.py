"""The store of records, a folder: records are written atomically and never changed."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainoff.errors import TrainoffError
from trainoff.files import sync
from trainoff.records.schema import SCHEMA_VERSION, Record

STAGING = ".staging"
STUDY_COPY = "study.toml"  # beside the records: the study, and the command that ran it
YOUNG_S = 60.0  # how long it may take to lock a new scratch folder


class Store:
    """The records of one study: `<folder>/<trial-id>/`, a retry as `<trial-id>.2/`, `.3/`, ..."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the folder, check that it is writable, and remove scratch folders of runs that were killed."""
        try:
            (self.folder / STAGING).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder / STAGING) as file:
                file.write(b"\0" * 4096)
                file.flush()
        except OSError as error:
            raise TrainoffError(cannot_write(self.folder, error)) from error
        for left in (self.folder / STAGING).iterdir():
            if abandoned(left):
                shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def stage(self, trial_id: str) -> Iterator[Path]:
        """Make a scratch folder, which `commit` turns into a record; it is removed at the end of the block."""
        folder = Path(tempfile.mkdtemp(prefix=f"{trial_id}-", dir=self.folder / STAGING)).resolve()
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held while this process lives, so that the folder is not removed
            (folder / "unlocked").rename(folder / "lock")  # a file of this name is always locked by a live run
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, record: Record, staged: Path) -> Path:
        """Turn a scratch folder into a record: write, sync, rename. If that fails, save it in the temporary folder."""
        try:
            return self._commit(record, staged)
        except OSError as error:
            copy = _save_elsewhere(record, staged)
            raise TrainoffError(f"{cannot_write(self.folder, error)}; the finished trial is kept in {copy}") from error

    def _commit(self, record: Record, staged: Path) -> Path:
        whole = staged / "record"
        whole.mkdir()
        (staged / "record.json").write_text(_text(record))
        for name in FILES:
            if (staged / name).exists():
                (staged / name).rename(whole / name)
                sync(whole / name)
        sync(whole)
        while True:
            target = self.folder / _folder_name(record)
            try:
                whole.rename(target)
            except OSError:
                if not target.exists():
                    raise
                record.attempt += 1  # another run has stored this attempt meanwhile; keep both
                (whole / "record.json").write_text(_text(record))
                sync(whole / "record.json")
                continue
            sync(self.folder)
            return target

    def newest(self) -> dict[str, Record]:
        """Return the newest attempt of every trial, by trial id."""
        if not self.folder.is_dir():
            return {}
        return {record.trial_id: record for record in sorted(scan(self.folder)[0], key=lambda record: record.attempt)}

    def latest(self, trial_id: str) -> Record | None:
        """Return the newest attempt of a trial that can be read, or None."""
        folders = [self.folder / trial_id, *self.folder.glob(f"{trial_id}.*")]
        attempts = [read(folder) for folder in folders if folder.is_dir()]
        records = [record for record in attempts if isinstance(record, Record)]
        return max(records, key=lambda record: record.attempt, default=None)


def _folder_name(record: Record) -> str:
    return record.trial_id if record.attempt == 1 else f"{record.trial_id}.{record.attempt}"


def folder_of(folder: Path, record: Record) -> Path:
    """Return the folder of a record, given it, its study's folder or a folder of studies, which may be renamed."""
    name = _folder_name(record)
    places = [folder / name, folder / record.study / name]
    if found := next((place for place in places if place.exists()), None):
        return found
    if (folder / "record.json").exists():
        return folder
    return min(folder.glob(f"*/{name}"), default=folder / name)


def abandoned(staged: Path) -> bool:
    """Return whether a scratch folder's process has ended; a new folder may not have its lock yet."""
    try:
        with (staged / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that several can check at once
            return True
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            return time.time() - staged.stat().st_mtime > YOUNG_S
    except OSError:
        pass
    return False


def _text(record: Record) -> str:
    return json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"


def _save_elsewhere(record: Record, staged: Path) -> Path:
    """Copy what was measured to the machine's temporary folder."""
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
    """Return the sentence about a folder that results cannot be written to."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space or choose another folder with --out" if full else "choose another folder with --out"
    return f"{folder}: results cannot be written there ({error.strerror or error}); {advice}"


FILES = ("record.json", "events.jsonl", "samples.parquet", "curve.parquet", "predictions.npy", "log.txt", "tensorboard")
EXPORTED = "exported.json"  # marks an exported folder, whose files may have the names of a record's


@dataclass(frozen=True)
class DamagedRecord:
    """A folder whose record cannot be read."""

    folder: Path
    why: str


@dataclass(frozen=True)
class _Versioned:
    schema_version: int


_VERSION = msgspec.json.Decoder(_Versioned)
_RECORD = msgspec.json.Decoder(Record)  # checks the type of every field


def read(folder: str | Path) -> Record | DamagedRecord:
    """Return the record in a folder, or what is wrong with it."""
    try:
        with open(os.path.join(folder, "record.json"), "rb") as file:  # noqa: PTH118, PTH123  # read 10,000 times
            text = file.read()
        try:
            record: Record | _Versioned = _RECORD.decode(text)
        except msgspec.ValidationError:
            record = _VERSION.decode(text)
            if record.schema_version == SCHEMA_VERSION:
                raise
    except FileNotFoundError:
        return DamagedRecord(Path(folder), "record.json is missing")
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return DamagedRecord(Path(folder), f"record.json cannot be read: {error}")
    if isinstance(record, _Versioned) or record.schema_version != SCHEMA_VERSION:
        version = record.schema_version
        return DamagedRecord(Path(folder), f"its schema version is {version}, this trainoff reads {SCHEMA_VERSION}")
    return record


def scan(folder: Path) -> tuple[list[Record], list[DamagedRecord]]:
    """Return the records and the damaged records in a study's folder or a folder of studies."""
    if not folder.is_dir():
        raise no_folder(folder)
    cache = RecordCache(folder)
    try:
        cache.refresh()
    except OSError as error:
        raise TrainoffError(f"{error.filename or folder}: this folder cannot be read ({error.strerror})") from error
    return cache.records, cache.damaged


def no_folder(folder: Path) -> TrainoffError:
    """Return the error for a path that is no folder."""
    what = "this is a file, not a folder of records" if folder.exists() else "there is no such folder"
    return TrainoffError(f"{folder}: {what}; `trainoff run` makes one under results/")


def no_records(folder: Path, damaged: Sequence[DamagedRecord] = ()) -> TrainoffError:
    """Return the error for a folder without readable records."""
    if damaged:
        what = "the one record" if len(damaged) == 1 else f"each of the {len(damaged):,} records"
        return TrainoffError(f"{folder}: {what} here is damaged; `trainoff show {folder}` says in what way")
    if deeper := min(folder.glob("*/*/*/record.json"), default=None):
        return TrainoffError(f"{folder}: no records here, but deeper; name a folder such as {deeper.parents[2]}")
    return TrainoffError(f"{folder}: no records here yet; `trainoff run STUDY` makes some")


def holds_record(folder: str) -> bool:
    """Return whether a folder has files of a record and is not an export."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    return EXPORTED not in names and not names.isdisjoint(FILES)


def folders(folder: str) -> list[tuple[str, int]]:
    """Return the folders in a folder, each with its inode number."""
    with os.scandir(folder) as entries:
        return [(entry.path, entry.inode()) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


class RecordCache:
    """The records below a folder, which need not exist yet; `refresh` reads only new ones.

    Folders are identified by name and inode, so that a record that replaces another is read again. A damaged record is
    read again when its folder changes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records: dict[tuple[str, int], Record] = {}
        self._damaged: dict[tuple[str, int, int], DamagedRecord] = {}

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    @property
    def damaged(self) -> list[DamagedRecord]:
        return list(self._damaged.values())

    def refresh(self) -> bool:
        """Read new records and forget removed ones; return whether there were any."""
        records: dict[tuple[str, int], Record] = {}
        damaged: dict[tuple[str, int, int], DamagedRecord] = {}
        collecting = gc.isenabled()
        gc.disable()  # the garbage collector would take as long as reading and find nothing
        try:
            for path, inode in sorted(self._record_folders()):
                if known := self._records.get((path, inode)):
                    records[path, inode] = known
                    continue
                key = path, inode, _changed(path)
                found = self._damaged.get(key) or read(path)
                if isinstance(found, DamagedRecord):
                    damaged[key] = found
                else:
                    records[path, inode] = found
        finally:
            if collecting:
                gc.enable()
        changed = records.keys() != self._records.keys() or damaged.keys() != self._damaged.keys()
        self._records, self._damaged = records, damaged
        return changed

    def folder_of(self, name: str) -> Path | None:
        """Return the folder of a trial's newest attempt, by trial id, or of one attempt, by the name of its folder."""
        known = ((path, record) for (path, _), record in self._records.items())
        found = [(one.attempt, path) for path, one in known if name in (one.trial_id, Path(path).name)]
        return Path(max(found)[1]) if found else None

    def _record_folders(self) -> Iterator[tuple[str, int]]:
        """Yield the folders with a record and their inodes; folders that are known are not opened."""
        if not self.folder.is_dir():
            return
        if holds_record(str(self.folder)):
            yield str(self.folder), self.folder.stat().st_ino
            return
        for path, inode in folders(str(self.folder)):
            if (path, inode) in self._records or holds_record(path):
                yield path, inode
            else:
                yield from (deep for deep in folders(path) if deep in self._records or holds_record(deep[0]))


def _changed(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # faster than a Path
    return 0
