"""A dataset: as engines see it (Data), on its way into the cache (RawDataset), its recipe and its catalogue entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError

Progress = Callable[[str, int, int | None], None]
"""The callback for progress: (what, bytes or rows done, their total if known)."""


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Data:
    """A dataset, ready to train on: arrays mapped from the cache, read-only and shared by all processes.

    Features are a matrix or sparse rows. They lie in [0, 1], sparse ones in [-1, 1] (a test part, scaled by its
    training part, may exceed it a little). Labels are 0 to classes - 1. `identity` changes with the content.
    """

    name: str
    x_train: Matrix  # [rows, features]
    y_train: NDArray[np.int64]
    x_test: Matrix
    y_test: NDArray[np.int64]
    classes: int
    identity: str
    image: tuple[int, int] | None = None  # height and width, where a row is a picture
    facts: Mapping[str, float] = field(default_factory=dict)  # such as the best possible error

    @property
    def sparse(self) -> bool:
        return isinstance(self.x_train, Csr)

    def head(self, train_rows: int) -> Data:
        """Return the dataset with only the first rows of its training part, without copying."""
        if not 1 <= train_rows <= len(self.y_train):
            raise TrainoffError(
                f"train_rows = {train_rows}, but {self.name} has {len(self.y_train)} training rows; "
                f"choose 1 to {len(self.y_train)}"
            )
        return replace(self, x_train=self.x_train[:train_rows], y_train=self.y_train[:train_rows])


@dataclass(frozen=True)
class RawDataset:
    """A dataset before it is cached, where its features become float32 `x / scale`; sparse ones may scale by column."""

    x_train: NDArray[Any] | Csr | Selection
    y_train: NDArray[np.integer[Any]]
    x_test: NDArray[Any] | Csr | Selection
    y_test: NDArray[np.integer[Any]]
    classes: int
    image: tuple[int, int] | None = None
    scale: float | NDArray[np.float32] = 1.0
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetRecipe:
    """How to make a dataset, and its identity in the cache."""

    name: str  # as `trainoff data get` takes it: a name, or the path of the user's own data
    title: str  # as in records and seeds: independent of where the file lies
    key: str  # the name of its folder in the cache
    identity: str
    make: Callable[[Path | None, Progress], RawDataset]

    @staticmethod
    def published(name: str, identity: str, make: Callable[[Path | None, Progress], RawDataset]) -> DatasetRecipe:
        """Return the recipe of a dataset that has a name."""
        return DatasetRecipe(name, title=name, key=name, identity=identity, make=make)


@dataclass(frozen=True)
class DatasetEntry:
    """One line of `trainoff data list`."""

    name: str
    about: str
    train_rows: int
    test_rows: int
    features: int
    classes: int
    cached: bool = False
    nonzeros: float | None = None  # of a row, about, where rows are sparse

    @property
    def rows(self) -> int:
        return self.train_rows + self.test_rows

    @property
    def bytes(self) -> int:
        """Return its size in the cache: four bytes a feature, in sparse rows eight and eight a row; eight a label."""
        row = 4 * self.features if self.nonzeros is None else 8 * self.nonzeros + 8
        return round(self.rows * (row + 8))


@dataclass(frozen=True)
class Csr:
    """A sparse matrix (compressed sparse rows).

    The non-zeros of row r lie from starts[r] to starts[r + 1] in `columns` and `values`. `starts` need not begin at 0:
    a slice of rows shares the arrays of the whole. The arrays may be mapped from files. In the rows of a dataset the
    columns ascend without duplicates.
    """

    starts: NDArray[np.int64]  # [rows + 1]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int  # the number of columns

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nonzeros(self) -> int:
        return int(self.starts[-1] - self.starts[0])

    @property
    def nbytes(self) -> int:
        """Return the bytes that its rows take in memory."""
        return self.starts.nbytes + self.nonzeros * (self.columns.itemsize + self.values.itemsize)

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> Csr:
        """Return some rows: a slice shares the arrays, a list of rows is gathered into new ones."""
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step != 1:
                raise ValueError("sparse rows are sliced one by one")
            return Csr(self.starts[first : max(first, last) + 1], self.columns, self.values, self.width)
        begins, counts = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        places = np.repeat(begins - starts[:-1], counts)
        places += np.arange(starts[-1])
        return Csr(starts, self.columns[places], self.values[places], self.width)

    def compact(self) -> Csr:
        """Return the same rows with arrays that hold nothing else and `starts` from 0, copying only `starts`."""
        first, last = int(self.starts[0]), int(self.starts[-1])
        return Csr(self.starts - first, self.columns[first:last], self.values[first:last], self.width)

    def row_numbers(self) -> NDArray[np.int64]:
        """Return the row number of each non-zero, counted from 0."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True)
class Selection:
    """Some rows of a sparse matrix in any order, gathered when they are read."""

    whole: Csr
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return self.whole.width

    @property
    def nonzeros(self) -> int:
        return int((self.whole.starts[self.rows + 1] - self.whole.starts[self.rows]).sum())

    def __getitem__(self, part: slice) -> Csr:
        return self.whole[self.rows[part]]


Matrix = Any  # float32 of [rows, features], or Csr; a model takes one of the two

_OPTIONS = re.compile(r"(.+?):([^/:]*=[^/:]*)")
_WHOLE = re.compile(r"\d[\d_]{0,17}")

Ranges = Mapping[str, tuple[int, int]]  # the smallest and the largest value of each option


def split_options(name: str) -> tuple[str, str]:
    """Split a name or path from the options behind its colon, which contain a `=`."""
    found = _OPTIONS.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def parse_options(name: str, text: str, ranges: Ranges) -> dict[str, int]:
    """Return the options in the text; raise a `TrainoffError` with what is expected if one is wrong."""
    values: dict[str, int] = {}
    for item in text.split(",") if text else []:
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in ranges:
            example = (
                f"{', '.join(ranges)}, as in {next(iter(ranges))}={next(iter(ranges.values()))[1]}" if ranges else ""
            )
            raise TrainoffError(f"{name} has no option {key!r}; expected {example or 'none, only the name'}")
        low, high = ranges[key]
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise TrainoffError(f"{name}: {key} is {value!r}; expected a whole number from {low:,} to {high:,}")
        if key in values:
            raise TrainoffError(f"{name}: {key} is given twice")
        values[key] = int(value)
    return values
