"""Hashing: categories become columns by a hash of whole numbers that is the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_SHIFT = np.uint64(31)


def mixed(words: Words) -> Words:
    """Each word scrambled so that every bit of the result depends on every bit of the word."""
    out = words.copy()
    for odd in _ODD:
        out ^= out >> _SHIFT
        out *= odd
    out ^= out >> _SHIFT
    return out


def columns_of(fields: NDArray[Any], words: Words, first: int, width: int) -> NDArray[np.int32]:
    """The columns of categories: a field's number and a word name one, and it falls into first to width - 1.

    `fields` and `words` are arrays of a common shape, or become so by broadcasting.
    """
    hashes = mixed(words ^ mixed(fields.astype(np.uint64) + np.uint64(1)))
    return (hashes % np.uint64(width - first)).astype(np.int32) + np.int32(first)
