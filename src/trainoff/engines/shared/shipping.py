"""Sending a job to other processes: its rows as memory-mapped files, as compact bytes, or left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import trainoff
from trainoff.data import Csr
from trainoff.engines.contract import Job

WEIGHT_BYTES = 4  # a float32


def allreduce_bytes(job: Job, workers: int) -> int:
    """Return the least bytes that an all-reduce of the gradients sends: that of a ring, to reduce and to distribute."""
    return int(2 * (workers - 1) * WEIGHT_BYTES * job.model.parameter_count)


def pack_rows(job: Job) -> Job:
    """Return the job with compact training rows in memory and no test rows; `unpack_rows` restores them."""
    data = job.data
    return _detach(
        job,
        x_train=in_memory(data.x_train) if data.sparse else compact(data.x_train),
        y_train=np.array(data.y_train),
        x_test=in_memory(data.x_test[:0]),
        y_test=np.array(data.y_test[:0]),
    )


def unpack_rows(job: Job) -> Job:
    """Return the job with the rows as they were before `pack_rows`."""
    data = job.data
    return job if data.sparse else replace(job, data=replace(data, x_train=expand(np.asarray(data.x_train))))


def without_rows(job: Job) -> Job:
    """Return the job without rows, for processes that get them by other means."""
    return _detach(job, **dict.fromkeys(PARTS))


def _detach(job: Job, **rows: Any) -> Job:
    no_cluster: Any = None
    return replace(job, data=replace(job.data, **rows), cluster=no_cluster, folder=Path())


def in_memory(x: Any) -> Any:
    """Return a copy of rows that are mapped from a file."""
    if isinstance(x, Csr):
        part = x.compact()
        return Csr(np.array(part.starts), np.array(part.columns), np.array(part.values), part.width)
    return np.array(x)


ARRAYS = ("starts", "columns", "values")  # of sparse rows
PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class InFile:
    """The place of an array in a file."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def mapped(self) -> NDArray[Any]:
        """Return the array, memory-mapped and read-only."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


@dataclass(frozen=True)
class SparseInFiles:
    """The places of sparse rows' arrays in files."""

    starts: InFile
    columns: InFile
    values: InFile
    width: int

    def mapped(self) -> Csr:
        return Csr(self.starts.mapped(), self.columns.mapped(), self.values.mapped(), self.width)


Rows = InFile | SparseInFiles


def in_file(rows: Any, folder: Path, name: str) -> Rows:
    """Return where the rows lie in files; write them into the folder if they are in none."""
    if isinstance(rows, Csr):
        # Slices share the arrays of the whole; `starts` alone selects the part.
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
    """Return the arrays that rows consist of."""
    return [rows] if isinstance(rows, InFile) else [getattr(rows, part) for part in ARRAYS]


def to_files(job: Job) -> Job:
    """Return the job for another process, with its rows as places in files; send these to the cluster's nodes."""
    no_cluster: Any = None
    rows: dict[str, Any] = {name: in_file(getattr(job.data, name), job.folder, name) for name in PARTS}
    job.cluster.send_files({Path(part.path) for each in rows.values() for part in parts_of(each)})
    return replace(job, data=replace(job.data, **rows), cluster=no_cluster)


def from_files(job: Job) -> Job:
    """Return the job of `to_files` with its rows mapped."""
    rows = {name: place.mapped() for name in PARTS if (place := getattr(job.data, name)) is not None}
    return replace(job, data=replace(job.data, **rows))


LEVELS = 255  # of grey
CHUNK = 4096  # rows converted together


def compact(x: Any) -> Any:
    """Return the rows as bytes if every number is a multiple of 1/255, else a copy of them."""
    small = np.empty(x.shape, np.uint8)
    for first in range(0, len(x), CHUNK):
        part = np.asarray(x[first : first + CHUNK])
        with np.errstate(invalid="ignore"):
            small[first : first + CHUNK] = np.rint(part * LEVELS)
        if not np.array_equal(expand(small[first : first + CHUNK]), part):
            return np.array(x)
    return small


def expand(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return the rows as they were before `compact`."""
    return x if x.dtype != np.uint8 else np.divide(x, np.float32(LEVELS), dtype=np.float32)


def gather_rows(x: NDArray[Any], rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Copy rows of compact or plain data into a buffer. Their indices must be valid."""
    if x.dtype == np.uint8:
        np.divide(x[rows], np.float32(LEVELS), out=out, dtype=np.float32)
    else:
        np.take(x, rows, axis=0, out=out, mode="clip")  # "clip" lets numpy write straight into the buffer


def inspect_python(modules: Sequence[str]) -> Callable[[], dict[str, Any]]:
    """Return a function that describes a worker's Python. It is sent by value: trainoff may be missing there."""
    required = ("trainoff", *modules)

    def describe() -> dict[str, Any]:
        import importlib.util
        import platform
        import sys

        lacks = [name for name in required if importlib.util.find_spec(name) is None]
        return {"python": sys.executable, "version": platform.python_version(), "host": platform.node(), "lacks": lacks}

    return describe


def source_archive(folder: Path) -> str:
    """Make a zip file of trainoff's source in a folder; return its path."""
    source = Path(trainoff.__file__).parent
    shutil.copytree(source, folder / "package" / "trainoff", ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(folder / "trainoff"), "zip", folder / "package")
