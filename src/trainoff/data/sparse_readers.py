"""Readers of users' own sparse files: which one reads a file, by its name and its first line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainoff.data import bandit, criteo, svmlight
from trainoff.data.dataset import Progress
from trainoff.data.options import Ranges
from trainoff.data.sparse import Csr
from trainoff.errors import TrainoffError

SUFFIXES = (".tsv", ".txt", ".svm", ".svmlight", ".libsvm")  # each also with .gz
BITS = 18  # categories are hashed into 2 ** BITS columns, unless `:bits=` behind the path says otherwise


@dataclass(frozen=True)
class Format:
    """How one format is read: (path, the number of columns, progress) to rows and labels."""

    read: Callable[[Path, int, Progress], tuple[Csr, NDArray[Any]]]
    options: Ranges


_HASHED: Ranges = {"bits": (10, 28)}
_CRITEO = Format(criteo.read, _HASHED)
_BANDIT = Format(bandit.read, _HASHED)
_SVMLIGHT = Format(lambda path, width, say: svmlight.read(path, say), {})


def suffix(path: Path) -> str:
    """The end of a file's name that tells its format, without .gz."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def find(path: Path) -> Format | None:
    """The format of a sparse file; None if it is another one, and so one of dense rows."""
    if path.is_dir() or not path.exists():
        return None
    kind = suffix(path)
    if kind in (".tsv", ".txt"):
        criteo.check(path)
        return _CRITEO
    if kind == ".csv":
        if bandit.is_one(path):
            return _BANDIT
        if path.suffix.lower() == ".gz":
            raise TrainoffError(f"{path} is gzipped, and of tables only click logs are read so; unzip it first")
    return _SVMLIGHT if kind in SUFFIXES else None
