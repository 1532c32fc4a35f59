"""A dataset: dense or sparse rows as engines see them (Data), its maker (Recipe, Made), and options behind its name."""

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
"""How data/ speaks while it works: (what, bytes or rows done, their total if known)."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of someone who does not want to know."""


@dataclass(frozen=True)
class Data:
    """A dataset, ready to train on: arrays mapped from the cache, read-only and shared by all processes.

    Features are a matrix, or sparse rows. They lie in [0, 1], sparse ones in [-1, 1] (in a test part scaled by its
    training part they may exceed it a little), labels are 0 to classes - 1, and `identity` changes whenever the
    content does.
    """

    name: str
    x_train: Matrix  # [rows, features]
    y_train: NDArray[np.int64]
    x_test: Matrix
    y_test: NDArray[np.int64]
    classes: int
    identity: str
    image: tuple[int, int] | None = None  # height and width, where a row is a picture
    facts: Mapping[str, float] = field(default_factory=dict)  # what else is known, such as the best possible error

    @property
    def sparse(self) -> bool:
        return isinstance(self.x_train, Csr)

    def head(self, train_rows: int) -> Data:
        """The same dataset with only the first rows of its training part; nothing is copied."""
        if not 1 <= train_rows <= len(self.y_train):
            raise TrainoffError(
                f"train_rows = {train_rows}, but {self.name} has {len(self.y_train)} training rows; "
                f"choose 1 to {len(self.y_train)}"
            )
        return replace(self, x_train=self.x_train[:train_rows], y_train=self.y_train[:train_rows])


@dataclass(frozen=True)
class Made:
    """A dataset on its way into the cache, where its features become float32 `x / scale`.

    Sparse rows may have a scale per column.
    """

    x_train: NDArray[Any] | Csr | Selection
    y_train: NDArray[np.integer[Any]]
    x_test: NDArray[Any] | Csr | Selection
    y_test: NDArray[np.integer[Any]]
    classes: int
    image: tuple[int, int] | None = None
    scale: float | NDArray[np.float32] = 1.0
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How to make one dataset, and by which identity it is known in the cache."""

    name: str  # as `trainoff data get` takes it: a name, or the path of the user's own data
    title: str  # as records and seeds know it: the same wherever the file lies
    key: str  # the name of its folder in the cache
    identity: str
    make: Callable[[Path | None, Progress], Made]


@dataclass(frozen=True)
class Csr:
    """A matrix of which each row keeps the columns and values of its non-zeros.

    Row r's lie from starts[r] to starts[r + 1] in `columns` and `values`. `starts` need not begin at 0: a slice of
    rows shares the arrays of the whole. The arrays may be mapped from files. In the rows of a dataset the columns
    ascend, and none comes twice.
    """

    starts: NDArray[np.int64]  # [rows + 1]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int  # how many columns there are

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
        """What its rows take in memory."""
        return self.starts.nbytes + self.nonzeros * (self.columns.itemsize + self.values.itemsize)

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> Csr:
        """Some of the rows: a slice shares the arrays, a list of rows is gathered into new ones from 0."""
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
        """The same rows with arrays that hold nothing else, and `starts` from 0; columns and values are not copied."""
        first, last = int(self.starts[0]), int(self.starts[-1])
        return Csr(self.starts - first, self.columns[first:last], self.values[first:last], self.width)

    def row_numbers(self) -> NDArray[np.int64]:
        """For each non-zero the row it belongs to, counted from 0."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True)
class Selection:
    """Some rows of sparse ones in an order of their own, gathered only where they are read."""

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

Ranges = Mapping[str, tuple[int, int]]  # the least and the largest value of each option


def split_options(name: str) -> tuple[str, str]:
    """A name or path, and what stands behind its colon; nothing if that holds no `=`."""
    found = _OPTIONS.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def parse_options(name: str, text: str, ranges: Ranges) -> dict[str, int]:
    """The options in the text, checked; a mistake is answered with what is expected."""
    values: dict[str, int] = {}
    for item in text.split(",") if text else []:
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in ranges:
            raise TrainoffError(f"{name} has no option {key!r}; expected {_expected(ranges)}")
        low, high = ranges[key]
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise TrainoffError(f"{name}: {key} is {value!r}; expected a whole number from {low:,} to {high:,}")
        if key in values:
            raise TrainoffError(f"{name}: {key} is given twice")
        values[key] = int(value)
    return values


def _expected(ranges: Ranges) -> str:
    if not ranges:
        return "none, only the name"
    return f"{', '.join(ranges)}, as in {next(iter(ranges))}={next(iter(ranges.values()))[1]}"
