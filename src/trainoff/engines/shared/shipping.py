"""A job on its way to other processes: as files to map, without its rows, pictures as bytes; trainoff's source."""

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
    """What an agreement must move: around a ring every worker but one passes each number on, to sum and to tell it."""
    return int(2 * (workers - 1) * WEIGHT_BYTES * job.model.parameters)


def pack_rows(job: Job) -> Job:
    """The job with the training rows in memory, as few bytes as they can be, and no test rows; see `arrived`."""
    data = job.data
    return _sent(
        job,
        x_train=in_memory(data.x_train) if data.sparse else compact(data.x_train),
        y_train=np.array(data.y_train),
        x_test=in_memory(data.x_test[:0]),
        y_test=np.array(data.y_test[:0]),
    )


def unpack_rows(job: Job) -> Job:
    """The job on a worker, with its rows as they were."""
    data = job.data
    return job if data.sparse else replace(job, data=replace(data, x_train=expand(np.asarray(data.x_train))))


def without_rows(job: Job) -> Job:
    """The job for processes that find the rows where they run."""
    return _sent(job, **dict.fromkeys(("x_train", "y_train", "x_test", "y_test")))


def _sent(job: Job, **rows: Any) -> Job:
    nowhere: Any = None  # workers have no cluster
    return replace(job, data=replace(job.data, **rows), cluster=nowhere, folder=Path())


def in_memory(x: Any) -> Any:
    """The rows without the file they are mapped from."""
    if hasattr(x, "compact"):
        part = x.compact()
        return replace(part, **{name: np.array(getattr(part, name)) for name in ("starts", "columns", "values")})
    return np.array(x)


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


def to_files(job: Job) -> Job:
    """The job for another process: without what only the driver has, its rows as places in files."""
    nowhere: Any = None
    rows: dict[str, Any] = {name: in_file(getattr(job.data, name), job.folder, name) for name in PARTS}
    job.cluster.send_files({Path(part.path) for each in rows.values() for part in parts_of(each)})
    return replace(job, data=replace(job.data, **rows), cluster=nowhere)


def from_files(job: Job) -> Job:
    """The job in that process: its rows are mapped from the files, those that were handed over."""
    rows = {name: found.mapped() for name in PARTS if (found := getattr(job.data, name)) is not None}
    return replace(job, data=replace(job.data, **rows))


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


def gather_rows(x: NDArray[Any], rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Put some rows into the buffer, as they were before. The rows are known to exist."""
    if x.dtype == np.uint8:
        np.divide(x[rows], np.float32(LEVELS), out=out, dtype=np.float32)
    else:
        np.take(x, rows, axis=0, out=out, mode="clip")  # "clip" lets numpy write straight into the buffer


def inspect_python(modules: Sequence[str]) -> Callable[[], dict[str, Any]]:
    """What a worker's Python tells of itself. Sent as it is, because trainoff may not be there to be imported."""
    wanted = ("trainoff", *modules)

    def tell() -> dict[str, Any]:
        import importlib.util
        import platform
        import sys

        lacks = [name for name in wanted if importlib.util.find_spec(name) is None]
        return {"python": sys.executable, "version": platform.python_version(), "host": platform.node(), "lacks": lacks}

    return tell


def source_archive(folder: Path) -> str:
    """trainoff itself as a zip file, made in a folder."""
    source = Path(trainoff.__file__).parent
    shutil.copytree(source, folder / "package" / "trainoff", ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(folder / "trainoff"), "zip", folder / "package")
