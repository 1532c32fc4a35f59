"""The training set as torch sees it: where it lies, and how a batch is taken from it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainoff.data import Csr

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix


@dataclass(frozen=True)
class Batch:
    """Rows and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class SparseBatch:
    """The non-zeros of some rows, each with the row of the batch that owns it, and the labels.

    Where the owner is the row after the last, a non-zero belongs to no row: it only fills the batch up.
    """

    columns: Tensor
    values: Tensor
    owners: Tensor
    y: Tensor


class Dense:
    """Rows of a matrix; a batch is gathered into the same memory every time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y
        self._room = x.new_empty(0)

    def take(self, rows: Tensor) -> Batch:
        """The batch of these rows; it is overwritten by the next."""
        if len(rows) > len(self._room):
            self._room = self._x.new_empty(len(rows), self._x.shape[1])
        x = torch.index_select(self._x, 0, rows, out=self._room[: len(rows)])
        return Batch(x, self._y.index_select(0, rows))

    def all(self) -> Batch:
        """Every row, as they lie."""
        return Batch(self._x, self._y)


class Sparse:
    """Sparse rows. `nonzeros` makes all batches the same size, which must hold those of any one."""

    def __init__(self, x: tuple[Tensor, Tensor, Tensor], y: Tensor) -> None:
        self.starts, self._columns, self._values = x
        self._y = y
        self.nonzeros: int | None = None

    def take(self, rows: Tensor) -> SparseBatch:
        begins = self.starts.index_select(0, rows)
        counts = self.starts.index_select(0, rows + 1) - begins
        ends = counts.cumsum(0)
        size = int(ends[-1]) if self.nonzeros is None else self.nonzeros
        # One more row, after the last, owns what is left over.
        counts = torch.cat([counts, size - ends[-1:]])
        owners = torch.repeat_interleave(counts, output_size=size)
        shifts = torch.cat([begins - ends + counts[:-1], -ends[-1:]])
        places = shifts.index_select(0, owners) + torch.arange(size, device=owners.device)
        columns = self._columns.index_select(0, places).long()
        return SparseBatch(columns, self._values.index_select(0, places), owners, self._y.index_select(0, rows))

    def all(self) -> SparseBatch:
        """Every row."""
        return self.take(torch.arange(len(self._y), device=self._y.device))


def of(x: Matrix, y: NDArray[np.integer[Any]], device: str) -> Dense | Sparse:
    """The rows on that device; on the CPU neither features nor labels are copied."""
    if isinstance(x, Csr):
        x = x.compact()
        return Sparse((on(x.starts, device), on(x.columns, device), on(x.values, device)), on(y, device))
    return Dense(on(x, device), on(y, device))


def on(array: NDArray[Any], device: str) -> Tensor:
    """The array on that device. Mapped arrays are read-only, which torch would warn of; nothing here writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array).to(device)
