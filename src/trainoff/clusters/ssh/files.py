"""Which files a host lacks: those of the trial's folder that are new or have changed since they were sent there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

State = tuple[int, int]  # size and time of the last change: who has both has the file


def state(path: Path) -> State | None:
    """What a file is like now; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that paths name, those in folders included."""
    for path in paths:
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


class Ledger:
    """What one host has of the trial's folder. `private` are patterns of what is for nobody else."""

    def __init__(self, folder: Path, private: Iterable[str]) -> None:
        self._folder, self._private = folder, tuple(private)
        self._sent: dict[Path, State | None] = {}

    def news(self) -> list[Path]:
        """The folders and files that the host has not, or not as they are now, folders first; from now on it has."""
        found = [path for path in self._shared(self._folder) if path.is_dir() or path.is_file()]
        now = {path: None if path.is_dir() else state(path) for path in found}
        new = [path for path in found if path not in self._sent or self._sent[path] != now[path]]
        self._sent |= {path: now[path] for path in new}
        return sorted(new, key=lambda path: (now[path] is not None, path))

    def _shared(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if any(fnmatch(str(path.relative_to(self._folder)), pattern) for pattern in self._private):
                continue
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from self._shared(path)


TOKEN = "hosts.token"  # a file by which a host that shares the caller's disk is known


class Place:
    """The trial's folder on this machine: made here, and removed at the end with every folder above that was made."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.shared = _read(folder / TOKEN) == token
        self.events = folder / "events"
        self._made: list[Path] = []
        if self.shared:
            self._made = [Path(tempfile.mkdtemp(prefix="trainoff-"))]
            self.events = self._made[0] / "events"
        else:
            self._make(folder)
        os.mkfifo(self.events, 0o600)

    def _make(self, folder: Path) -> None:
        if folder.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        self._made = new

    def remove(self) -> None:
        """Remove what was made, if nobody else has put something there."""
        if self._made:
            shutil.rmtree(self._made[0], ignore_errors=True)
        for folder in self._made[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def sentence(error: OSError) -> str:
    """What could not be written here, and what to do."""
    where = error.filename or "a file"
    if isinstance(error, FileExistsError):
        return f"{where} is there already; a machine can be among the hosts only once, whatever its names"
    return (
        f"{where} could not be made there ({error.strerror}); choose with --out and TRAINOFF_CACHE "
        "folders that can be made on all machines"
    )
