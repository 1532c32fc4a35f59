"""What a dataset is: as engines see it (Data), and as it comes from its maker (Made, by a Recipe)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.sparse import Csr, Matrix, Selection
from trainoff.errors import TrainoffError

Progress = Callable[[str, int, int | None], None]
"""How data/ speaks while it works: (what, bytes or rows done, their total if known)."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of someone who does not want to know."""


@dataclass(frozen=True)
class Data:
    """A dataset, ready to train on: arrays mapped from the cache, read-only and shared by all processes.

    Features are a matrix, or sparse rows. They lie in [0, 1], sparse ones in [-1, 1] (in a test part scaled by its
    training part they may exceed it a little), labels are 0 to classes - 1, and `identity` changes whenever the
    content does.
    """

    name: str
    x_train: Matrix  # [rows, features]
    y_train: NDArray[np.int64]
    x_test: Matrix
    y_test: NDArray[np.int64]
    classes: int
    identity: str
    image: tuple[int, int] | None = None  # height and width, where a row is a picture
    facts: Mapping[str, float] = field(default_factory=dict)  # what else is known, such as the best possible error

    @property
    def sparse(self) -> bool:
        return isinstance(self.x_train, Csr)

    def head(self, train_rows: int) -> Data:
        """The same dataset with only the first rows of its training part; nothing is copied."""
        if not 1 <= train_rows <= len(self.y_train):
            raise TrainoffError(
                f"train_rows = {train_rows}, but {self.name} has {len(self.y_train)} training rows; "
                f"choose 1 to {len(self.y_train)}"
            )
        return replace(self, x_train=self.x_train[:train_rows], y_train=self.y_train[:train_rows])


@dataclass(frozen=True)
class Made:
    """A dataset on its way into the cache, where its features become float32 `x / scale`.

    Sparse rows may have a scale per column.
    """

    x_train: NDArray[Any] | Csr | Selection
    y_train: NDArray[np.integer[Any]]
    x_test: NDArray[Any] | Csr | Selection
    y_test: NDArray[np.integer[Any]]
    classes: int
    image: tuple[int, int] | None = None
    scale: float | NDArray[np.float32] = 1.0
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How to make one dataset, and by which identity it is known in the cache."""

    name: str  # as `trainoff data get` takes it: a name, or the path of the user's own data
    title: str  # as records and seeds know it: the same wherever the file lies
    key: str  # the name of its folder in the cache
    identity: str
    make: Callable[[Path | None, Progress], Made]
