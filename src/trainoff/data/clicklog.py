"""What the readers of click logs share: labels, categories hashed into columns, and rows of both numbers and those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainoff.data.hashing import columns_of
from trainoff.data.sparse import Csr
from trainoff.data.spool import Spool
from trainoff.data.text import Table

Part = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.bool_]]


def labels(table: Table, column: int) -> NDArray[np.int64]:
    """The labels in a column: 0 or 1, nothing else."""
    found, present = table.whole_numbers([column])
    odd = np.flatnonzero(~present[:, 0] | (found[:, 0] < 0) | (found[:, 0] > 1))
    if len(odd):
        raise table.refused(int(odd[0]), column, "is not a label; expected 0 or 1")
    return found[:, 0]


def categories(
    table: Table, cells: Sequence[int], first: int, width: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The columns, from `first` on, of the categories in some cells, ascending in each row, and which of them count.

    An empty cell does not count, and of two categories that fall into one column only the first.
    """
    hashes, present = table.hashes(cells)
    columns = columns_of(np.arange(len(cells)), hashes, first, width)
    columns = np.sort(np.where(present, columns, np.int32(width)), axis=1)
    present = columns < width
    present[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    return columns, present


def gather(parts: Iterable[Part], width: int) -> tuple[Csr, NDArray[np.int64]]:
    """All rows and labels of parts that each hold labels, numbers for the first columns, and categories behind them."""
    spool, found = Spool(), [np.empty(0, np.int64)]
    for part_labels, numbers, columns, present in parts:
        found.append(part_labels)
        first = np.broadcast_to(np.arange(numbers.shape[1], dtype=np.int32), numbers.shape)
        places = np.concatenate([first, columns], axis=1)
        values = np.concatenate([numbers, np.ones(columns.shape, np.float32)], axis=1)
        kept = np.concatenate([numbers != 0, present], axis=1)
        spool.add(kept.sum(axis=1), places[kept], values[kept])
    return spool.rows(width), np.concatenate(found)
