"""Sparse rows: only the features that are not zero, row after row (CSR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
