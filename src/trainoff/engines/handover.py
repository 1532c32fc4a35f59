"""A job on its way to other processes: the rows stay in their files, and every process maps them.

Where processes are on machines with other disks, the files are brought there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr
from trainoff.engines.contract import Job

ARRAYS = ("starts", "columns", "values")  # of sparse rows
PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class InFile:
    """An array that lies in a file as it lies in memory, from some byte on."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def mapped(self) -> NDArray[Any]:
        """The array, read-only."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


@dataclass(frozen=True)
class SparseInFiles:
    """Sparse rows, each of their arrays in a file."""

    starts: InFile
    columns: InFile
    values: InFile
    width: int

    def mapped(self) -> Csr:
        return Csr(self.starts.mapped(), self.columns.mapped(), self.values.mapped(), self.width)


Rows = InFile | SparseInFiles


def in_file(rows: Any, folder: Path, name: str) -> Rows:
    """Where the rows lie; those that lie in no file yet are written into the folder."""
    if isinstance(rows, Csr):
        # Slices share the arrays of the whole, so starts alone says which part is meant.
        arrays = (_array(getattr(rows, part), folder, f"{name}.{part}") for part in ARRAYS)
        return SparseInFiles(next(arrays), next(arrays), next(arrays), rows.width)
    return _array(rows, folder, name)


def _array(array: NDArray[Any], folder: Path, name: str) -> InFile:
    root: Any = array
    while isinstance(getattr(root, "base", None), np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not array.flags.c_contiguous:
        path = folder / f"{name}.npy"
        np.save(path, array)
        array = root = np.load(path, mmap_mode="r")
    offset = root.offset + array.ctypes.data - root.ctypes.data
    return InFile(str(root.filename), offset, array.shape, array.dtype.str)


def parts_of(rows: Rows) -> list[InFile]:
    """The arrays that rows are made of."""
    return [rows] if isinstance(rows, InFile) else [getattr(rows, part) for part in ARRAYS]


def hand_over(job: Job) -> Job:
    """The job for another process: without what only the driver has, its rows as places in files."""
    nowhere: Any = None
    rows: dict[str, Any] = {name: in_file(getattr(job.data, name), job.folder, name) for name in PARTS}
    job.cluster.bring({Path(part.path) for each in rows.values() for part in parts_of(each)})
    return replace(job, data=replace(job.data, **rows), cluster=nowhere)


def take_over(job: Job) -> Job:
    """The job in that process: its rows are mapped from the files, those that were handed over."""
    rows = {name: found.mapped() for name in PARTS if (found := getattr(job.data, name)) is not None}
    return replace(job, data=replace(job.data, **rows))
