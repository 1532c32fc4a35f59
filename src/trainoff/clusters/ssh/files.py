"""Which files a host lacks: those of the trial's folder that are new or have changed since they were sent there."""

from __future__ import annotations

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
