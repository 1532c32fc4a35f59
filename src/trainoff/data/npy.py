"""Arrays into .npy files: piece by piece, so that a large dataset never lies in memory as a whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.dataset import Made, Progress
from trainoff.data.sparse import Csr, Selection

SPARSE = ("starts", "columns", "values")  # the arrays of sparse rows, as Csr calls them
_CHUNK_ROWS = 4096

About = dict[str, Any]  # what the manifest says of one array


class _File:
    """One .npy file while it is written; its SHA-256 grows with it."""

    def __init__(self, file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype), shape
        header: Any = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(0)
        self._digest = hashlib.sha256(file.read())

    def add(self, values: NDArray[Any]) -> None:
        chunk = np.ascontiguousarray(values, self._dtype)
        self._digest.update(chunk.data)
        self._file.write(chunk.data)

    def close(self) -> About:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest(), "shape": self._shape}


@contextmanager
def _open(folder: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> Iterator[_File]:
    with (folder / f"{name}.npy").open("wb+") as file:
        yield _File(file, dtype, shape)


def write(folder: Path, name: str, made: Made, say: Progress) -> dict[str, About]:
    """Write one part of a dataset, scaled, as one array or, where its rows are sparse, as three."""
    part = getattr(made, name)
    if isinstance(part, (Csr, Selection)):
        return _write_sparse(folder, name, part, made.scale, say)
    dtype = np.dtype(np.float32 if name.startswith("x") else np.int64)
    with _open(folder, name, dtype, part.shape) as file:
        for start in range(0, len(part), _CHUNK_ROWS):
            chunk = np.ascontiguousarray(part[start : start + _CHUNK_ROWS], dtype)
            if dtype == np.float32 and made.scale != 1:
                chunk = chunk / np.float32(made.scale)
            file.add(chunk)
            say(f"writing {name}", start + len(chunk), len(part))
        return {name: file.close()}


def _write_sparse(
    folder: Path, name: str, part: Csr | Selection, scale: float | NDArray[np.float32], say: Progress
) -> dict[str, About]:
    shapes = (len(part) + 1,), (part.nonzeros,), (part.nonzeros,)
    with ExitStack() as stack:
        files = {
            f"{name}.{array}": stack.enter_context(_open(folder, f"{name}.{array}", dtype, shape))
            for array, dtype, shape in zip(SPARSE, (np.int64, np.int32, np.float32), shapes, strict=True)
        }
        starts, columns, values = files.values()
        starts.add(np.zeros(1))
        written = 0
        for start in range(0, len(part), _CHUNK_ROWS):
            rows = part[start : start + _CHUNK_ROWS].compact()
            starts.add(written + rows.starts[1:])
            columns.add(rows.columns)
            values.add(rows.values / (scale[rows.columns] if isinstance(scale, np.ndarray) else np.float32(scale)))
            written += rows.nonzeros
            say(f"writing {name}", start + len(rows), len(part))
        return {array: file.close() for array, file in files.items()}


def names(name: str, sparse: bool) -> list[str]:
    """The arrays that one part of a dataset is made of."""
    return [f"{name}.{array}" for array in SPARSE] if sparse and name.startswith("x") else [name]


def read(folder: Path, name: str, width: int | None) -> Any:
    """One part of a dataset, mapped read-only; `width` is that of sparse rows, None where they are dense."""
    arrays = [np.load(folder / f"{array}.npy", mmap_mode="r") for array in names(name, width is not None)]
    if width is None or len(arrays) == 1:
        return arrays[0]
    starts, columns, values = arrays
    return Csr(starts, columns, values, width)
