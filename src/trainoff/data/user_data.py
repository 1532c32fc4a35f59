"""Users' own data, in any of the formats of readers.py and sparse_readers.py: checked, scaled and split."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import cache, dataset, readers, sparse_readers
from trainoff.data.cache import cached_sha256, combine
from trainoff.data.dataset import DatasetRecipe, Progress, RawDataset
from trainoff.data.readers import DensePart
from trainoff.data.sparse_readers import Format
from trainoff.data.split import hold_out, split_sparse
from trainoff.errors import TrainoffError

_VERSION = 1  # of this module's results; if it changes, cached datasets are made again
_SPARSE_VERSION = 1  # the same for sparse files


def recipe(path: Path, text: str = "") -> DatasetRecipe:
    """Return the recipe of the data at a path with some options, identified by the content of its files."""
    try:
        sparse = sparse_readers.find_format(path)
        content = [cached_sha256(file, cache.root() / "paths") for file in ([path] if sparse else readers.files(path))]
    except OSError as error:
        raise TrainoffError(f"{path} cannot be read: {error.strerror}") from error
    given = dataset.parse_options(str(path), text, sparse.options if sparse else {})
    if sparse is None:
        identity = combine("own", _VERSION, *content)
        return DatasetRecipe(str(path.absolute()), path.name, f"own-{identity[:16]}", identity, partial(_make, path))
    bits = given.get("bits", sparse_readers.BITS)
    end = f":bits={bits}" if bits != sparse_readers.BITS else ""
    identity = combine("own-sparse", _SPARSE_VERSION, *([bits] if sparse.options else []), *content)
    make = partial(_make_sparse, path, sparse, bits)
    return DatasetRecipe(f"{path.absolute()}{end}", f"{path.name}{end}", f"own-{identity[:16]}", identity, make)


def _make_sparse(path: Path, sparse: Format, bits: int, folder: Path | None, progress: Progress) -> RawDataset:
    x, labels = sparse.read(path, 1 << bits, progress)
    if not len(x):
        raise TrainoffError(f"{path} is empty")
    (numbers, _), classes = _numbered([labels], path)
    return split_sparse(x, numbers, classes)


def _make(path: Path, folder: Path | None, progress: Progress) -> RawDataset:
    progress(f"reading {path.name}", 0, None)
    parts = readers.read(path)
    for part, name in zip(parts, ("training", "test"), strict=False):
        _check(part, f"{path}, {name} part" if len(parts) == 2 else str(path))
    labels, classes = _numbered([part.y for part in parts], path)
    if len(parts) == 2 and parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        shapes = " and ".join(str(list(part.x.shape[1:])) for part in parts)
        raise TrainoffError(f"{path}: the features of the training and the test part differ in shape: {shapes}")
    image = (parts[0].x.shape[1], parts[0].x.shape[2]) if parts[0].x.ndim == 3 else None
    flat = [part.x.reshape(len(part.x), -1) for part in parts]
    if len(parts) == 1:
        rows = hold_out(labels[0])
        flat, labels = [flat[0][part] for part in rows], [labels[0][part] for part in rows]
    x_train, x_test = _scaled(*flat)
    return RawDataset(x_train, labels[0], x_test, labels[1], classes, image)


def _check(part: DensePart, place: str) -> None:
    """Raise an error with the place of data that cannot be trained on."""
    if part.x.ndim not in (2, 3) or part.y.ndim != 1:
        shapes = f"{list(part.x.shape)} and {list(part.y.shape)}"
        raise TrainoffError(
            f"{place}: features must be [rows, features] or [rows, height, width] and labels [rows]; they are {shapes}"
        )
    if len(part.x) != len(part.y):
        raise TrainoffError(f"{place}: {len(part.x)} rows of features, but {len(part.y)} labels")
    if part.x.size == 0:
        raise TrainoffError(f"{place} is empty")
    if part.x.dtype.kind not in "biuf":
        raise TrainoffError(f"{place} has no numeric features: they are of type {part.x.dtype}")
    bad = np.argwhere(~np.isfinite(part.x.reshape(len(part.x), -1)))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        name = repr(part.columns[column]) if part.columns else str(column + 1)
        raise TrainoffError(
            f"{place}: row {row + 1}, column {name} is missing, NaN or infinite; fill it or leave it out"
        )


def _numbered(labels: list[NDArray[Any]], path: Path) -> tuple[list[NDArray[np.int64]], int]:
    """Return the labels numbered from 0 to classes - 1 in their sorted order."""
    values = np.concatenate(labels)
    if values.dtype.kind == "f":
        odd = np.flatnonzero(~np.isfinite(values) | (values != np.rint(values)))
        if len(odd):
            raise TrainoffError(
                f"{path}: the label {values[odd[0]]} is not a whole number; labels must be classes, not quantities"
            )
    elif values.dtype.kind not in "biuU":
        raise TrainoffError(f"{path}: labels must be whole numbers or text, not {values.dtype}")
    classes, numbers = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise TrainoffError(f"{path}: all labels are {classes[0]}; there must be at least two classes")
    first = len(labels[0])
    return [numbers[:first], numbers[first:]], len(classes)


def _scaled(x_train: NDArray[Any], x_test: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale both parts by the training part: not at all within [0, 1], bytes by 255, else column by column."""
    low, high = x_train.min(axis=0).astype(np.float64), x_train.max(axis=0).astype(np.float64)
    if low.min() >= 0 and high.max() <= 1:
        return x_train.astype(np.float32), x_test.astype(np.float32)
    if x_train.dtype == np.uint8:
        low, high = np.zeros_like(low), np.full_like(high, 255)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        span = np.where(high > low, high - low, 1)  # a column that never changes becomes 0
        train, test = (((x - low) / span).astype(np.float32) for x in (x_train, x_test))
    if not np.isfinite(span).all() or not np.isfinite(test).all():
        raise TrainoffError("the features are too large to be scaled; divide them by their size first")
    return train, test
