"""Pictures as one byte per number: a quarter of what they are as floats, on a journey and in a worker's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVELS = 255  # of grey
CHUNK = 4096  # rows that are looked at together


def compact(x: Any) -> Any:
    """The rows as bytes if every number is a whole 255th, so that nothing is lost; else as they are."""
    small = np.empty(x.shape, np.uint8)
    for first in range(0, len(x), CHUNK):
        part = np.asarray(x[first : first + CHUNK])
        with np.errstate(invalid="ignore"):
            small[first : first + CHUNK] = np.rint(part * LEVELS)
        if not np.array_equal(expand(small[first : first + CHUNK]), part):
            return np.array(x)
    return small


def expand(x: NDArray[Any]) -> NDArray[np.float32]:
    """The rows as they were before."""
    return x if x.dtype != np.uint8 else np.divide(x, np.float32(LEVELS), dtype=np.float32)


def take(x: NDArray[Any], rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Put some rows into the buffer, as they were before. The rows are known to exist."""
    if x.dtype == np.uint8:
        np.divide(x[rows], np.float32(LEVELS), out=out, dtype=np.float32)
    else:
        np.take(x, rows, axis=0, out=out, mode="clip")  # "clip" lets numpy write straight into the buffer
