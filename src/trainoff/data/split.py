"""The hold-out: the fifth of a dataset that is kept for testing if it has no test part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.cache import combine
from trainoff.data.dataset import Csr, Data, DatasetRecipe, Progress, RawDataset, Selection
from trainoff.study.study import derive


def hold_out(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows for training and, of every class about a fifth, those for testing, drawn by a fixed seed.

    Both parts are shuffled, so that the first rows of a file that was sorted by class hold all classes.
    """
    shuffled = np.random.default_rng(derive("hold-out")).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    held = np.zeros(len(labels), bool)
    held[by_class[::5]] = True
    return shuffled[~held[shuffled]], shuffled[held[shuffled]]


_CHUNK_ROWS = 1 << 16


def split_sparse(x: Csr, y: NDArray[np.int64], classes: int) -> RawDataset:
    """Hold out a fifth of the rows, and scale all by the training part.

    Unless all values are within [-1, 1], each column is divided by its largest absolute value.
    """
    train, test = hold_out(y)
    largest = _largest(x, train)
    scale = np.where(largest > 0, largest, 1).astype(np.float32) if largest.max() > 1 else 1.0
    return RawDataset(Selection(x, train), y[train], Selection(x, test), y[test], classes, scale=scale)


def _largest(x: Csr, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the largest absolute value of each column in some of the rows."""
    chosen = np.zeros(len(x), bool)
    chosen[rows] = True
    largest = np.zeros(x.width, np.float32)
    for start in range(0, len(x), _CHUNK_ROWS):
        part = x[start : start + _CHUNK_ROWS].compact()
        entries = np.repeat(chosen[start : start + _CHUNK_ROWS], np.diff(part.starts))
        np.maximum.at(largest, part.columns[entries], np.abs(part.values[entries]))
    return largest


PREFIX = "validation-of:"
_VERSION = 1


def validation_of(name: str) -> str:
    """Return the name of the dataset on which parameters for this one are tuned."""
    return f"{PREFIX}{name}"


def validation_recipe(parent: DatasetRecipe, get: Callable[[Progress], Data]) -> DatasetRecipe:
    """Return the recipe of the validation dataset, whose parent `get` loads."""
    return DatasetRecipe(
        name=validation_of(parent.name),
        title=validation_of(parent.title),
        key=f"validation-of-{parent.key}",
        identity=combine("validation", _VERSION, parent.identity),
        make=lambda _, progress: hold_out_validation(get(progress)),
    )


def hold_out_validation(parent: Data) -> RawDataset:
    """Hold out a fifth of the training rows of every class; the features are scaled already."""
    x, labels = parent.x_train, np.asarray(parent.y_train)
    train, held = hold_out(labels)
    parts = [Selection(x, rows) if isinstance(x, Csr) else x[rows] for rows in (train, held)]
    return RawDataset(
        parts[0], labels[train], parts[1], labels[held], parent.classes, parent.image, facts=dict(parent.facts)
    )
