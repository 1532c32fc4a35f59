"""Sparse rows without a test part: divided into two parts, and scaled by the training part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainoff.data.dataset import Made
from trainoff.data.sparse import Csr, Selection
from trainoff.data.split import hold_out

_CHUNK_ROWS = 1 << 16


def divide(x: Csr, y: NDArray[np.int64], classes: int) -> Made:
    """Hold a fifth of the rows out, and scale all by the training part.

    Values within [-1, 1] stay as they are; otherwise each column is divided by its largest absolute value.
    """
    train, test = hold_out(y)
    largest = _largest(x, train)
    scale = np.where(largest > 0, largest, 1).astype(np.float32) if largest.max() > 1 else 1.0
    return Made(Selection(x, train), y[train], Selection(x, test), y[test], classes, scale=scale)


def _largest(x: Csr, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The largest absolute value of each column in some of the rows."""
    chosen = np.zeros(len(x), bool)
    chosen[rows] = True
    largest = np.zeros(x.width, np.float32)
    for start in range(0, len(x), _CHUNK_ROWS):
        part = x[start : start + _CHUNK_ROWS].compact()
        entries = np.repeat(chosen[start : start + _CHUNK_ROWS], np.diff(part.starts))
        np.maximum.at(largest, part.columns[entries], np.abs(part.values[entries]))
    return largest
