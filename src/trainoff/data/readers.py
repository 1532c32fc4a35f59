"""Readers of users' dense files: IDX, npz, CSV and Parquet, each into plain arrays."""

from __future__ import annotations

import gzip
import math
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import sparse_readers
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import polars

SUFFIXES = (".npz", ".csv", ".parquet")
_LABELS = ("label", "target", "class", "y")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class DensePart:
    """The features and labels of one part of the data, as in the file."""

    x: NDArray[Any]  # [rows, features] or [rows, height, width]
    y: NDArray[Any]
    columns: Sequence[str] | None = None  # the names of the features, if the file has them


def files(path: Path) -> list[Path]:
    """Return the files of the data at a path: the path itself, or the IDX files in a folder, test part last."""
    if not path.exists():
        raise TrainoffError(f"there is no file or folder {path}")
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            known = ", ".join((*SUFFIXES, *sparse_readers.SUFFIXES))
            raise TrainoffError(f"{path} ends in none of {known}; a folder must hold IDX files")
        return [path]
    train = _pair(path, "train")
    if train is None:
        raise TrainoffError(f"{path} holds no IDX files: train-images-idx3-ubyte and train-labels-idx1-ubyte")
    return train + (_pair(path, "t10k") or _pair(path, "test") or [])


def _pair(folder: Path, part: str) -> list[Path] | None:
    """Return the images and labels of one part, or None if neither is there; one alone is an error."""
    images, labels = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    found = [
        next((folder / each for each in spellings(name) if (folder / each).is_file()), None)
        for name in (images, labels)
    ]
    if found == [None, None]:
        return None
    for path, name in zip(found, (images, labels), strict=True):
        if path is None:
            raise TrainoffError(f"{folder} holds no {name}")
    return [path for path in found if path]


def read(path: Path) -> list[DensePart]:
    """Return the training part of the data at a path, and its test part if it has one."""
    if path.is_dir():
        arrays = [parse_idx(read_unzipped(file), str(file)) for file in files(path)]
        return [DensePart(x, y) for x, y in zip(arrays[::2], arrays[1::2], strict=True)]
    return _npz(path) if path.suffix.lower() == ".npz" else [_table(path)]


def _npz(path: Path) -> list[DensePart]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TrainoffError(f"{path} is not a readable .npz file of plain arrays: {error}") from error
    for x, y in (("x_train", "y_train"), ("x", "y"), ("X", "y")):
        if x in arrays and y in arrays:
            train = DensePart(arrays[x], arrays[y])
            both = x == "x_train" and "x_test" in arrays and "y_test" in arrays
            return [train, DensePart(arrays["x_test"], arrays["y_test"])] if both else [train]
    held = ", ".join(arrays) or "nothing"
    raise TrainoffError(f"{path} must hold x_train, y_train, x_test and y_test, or x and y; it holds {held}")


def _table(path: Path) -> DensePart:
    import polars

    try:
        if path.suffix.lower() == ".csv":
            _check_head(path)
            table = polars.read_csv(path, infer_schema_length=None)
        else:
            table = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise TrainoffError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error
    label = _label_column(table)
    if label is None or table.height == 0:
        raise TrainoffError(f"{path} is empty; it needs a column of labels, columns of features, and rows")
    return DensePart(_features(table.drop(label), path), _labels(table[label], path), table.drop(label).columns)


def _check_head(path: Path) -> None:
    """Raise an error if a CSV file has no header, or is not separated by commas."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:  # what is not UTF-8 is refused later
        head, first = file.readline(), file.readline()
    if "," not in head:
        for separator, name in ((";", "`;`"), ("\t", "a tab")):
            if separator in head + first:
                raise TrainoffError(f"{path} has one column; is its separator {name}? Only commas are read")
    if all(_NUMBER.fullmatch(cell.strip('" \n')) for cell in head.split(",")):
        raise TrainoffError(
            f"{path}: the first line looks like data; a head line with the names of the columns is needed"
        )


def _label_column(table: polars.DataFrame) -> str | None:
    """Return the name of the column with the name of a label, else of the last column."""
    called = {column.lower(): column for column in table.columns}
    named = next((called[name] for name in _LABELS if name in called), None)
    return named or (table.columns[-1] if table.columns else None)


def _features(table: polars.DataFrame, path: Path) -> NDArray[np.float64]:
    import polars

    text = [name for name, kind in table.schema.items() if not (kind.is_numeric() or kind == polars.Boolean)]
    if len(text) == table.width:
        raise TrainoffError(
            f"{path} has no numeric features: besides the label it holds {', '.join(text) or 'nothing'}"
        )
    if text:
        raise TrainoffError(f"{path}: column {text[0]!r} is not numeric; leave it out or turn it into numbers")
    return table.cast(polars.Float64).to_numpy()


def _labels(column: polars.Series, path: Path) -> NDArray[Any]:
    if column.null_count():
        row = int(column.is_null().arg_true()[0]) + 1
        raise TrainoffError(f"{path}: row {row} has no label in column {column.name!r}")
    if column.dtype.is_nested():
        raise TrainoffError(
            f"{path}: column {column.name!r} holds {column.dtype}; labels must be whole numbers or text"
        )
    return column.to_numpy() if column.dtype.is_numeric() else column.cast(str).to_numpy().astype(str)


_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def spellings(name: str) -> list[str]:
    """Return the file names that an IDX file may have: `-idx3-` or `.idx3-`, raw or gzipped."""
    raw = [name, name.replace("-idx", ".idx")]
    return raw + [f"{spelling}.gz" for spelling in raw]


def read_unzipped(path: Path) -> bytes:
    """Return the uncompressed bytes of a raw or gzipped file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TrainoffError(f"{path} cannot be read: {error.strerror}") from error
    return unzip(raw, str(path))


def unzip(raw: bytes, location: str) -> bytes:
    """Return the bytes, decompressed if they are gzipped."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise TrainoffError(f"{location} is not a whole gzip file ({error}); fetch it again") from error


def parse_idx(raw: bytes, location: str) -> NDArray[Any]:
    """Return the array in an IDX file's bytes, without copying them."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES or raw[3] == 0:
        raise TrainoffError(f"{location} is not an IDX file: it begins with {raw[:4].hex(' ') or 'nothing'}")
    dtype, start = np.dtype(_TYPES[raw[2]]), 4 + 4 * raw[3]
    if len(raw) < start:
        raise TrainoffError(f"{location} is truncated: it ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", raw[3], 4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        fault = "is truncated" if len(raw) < expected else "is too long"
        raise TrainoffError(f"{location} {fault}: {expected:,} bytes expected, {len(raw):,} found; fetch it again")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)
