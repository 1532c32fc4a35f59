"""The spool: sparse rows on their way into the cache, in files that vanish with their process."""

from __future__ import annotations

import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import cache
from trainoff.data.sparse import Csr


class Spool:
    """Takes sparse rows piece by piece, however many they are, and gives all of them, mapped from a file.

    The files lie beside the datasets of the cache and have no name: nothing is left of them if the process dies.
    """

    def __init__(self) -> None:
        folder = cache.root() / "data"
        with cache.written():
            folder.mkdir(parents=True, exist_ok=True)
            self._columns: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the spool)
            self._values: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (as long as the spool)
        self._counts: list[NDArray[np.int64]] = []

    def add(self, counts: NDArray[np.integer[Any]], columns: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Add rows: how many non-zeros each has, and all of these, row after row."""
        with cache.written():
            self._columns.write(np.ascontiguousarray(columns, np.int32).data)
            self._values.write(np.ascontiguousarray(values, np.float32).data)
        self._counts.append(counts.astype(np.int64))

    def rows(self, width: int) -> Csr:
        """All rows that were added. Their arrays can be changed in place."""
        starts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        np.cumsum(starts, out=starts)
        return Csr(starts, _mapped(self._columns, np.int32), _mapped(self._values, np.float32), width)


def _mapped(file: IO[bytes], dtype: type[Any]) -> NDArray[Any]:
    with cache.written():
        file.flush()
        return np.memmap(file, dtype, "r+") if file.tell() else np.empty(0, dtype)
