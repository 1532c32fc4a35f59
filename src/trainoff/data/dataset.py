"""What a dataset is: as engines see it (Data), and as it comes from its maker (Made, by a Recipe)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError

Progress = Callable[[str, int, int | None], None]
"""How data/ speaks while it works: (what, bytes or rows done, their total if known)."""


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of someone who does not want to know."""


@dataclass(frozen=True)
class Data:
    """A dataset, ready to train on: arrays mapped from the cache, read-only and shared by all processes.

    Features lie in [0, 1] (in a test part scaled by its training part they may exceed it a little),
    labels are 0 to classes - 1, and `identity` changes whenever the content does.
    """

    name: str
    x_train: NDArray[np.float32]  # [rows, features]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: int
    identity: str
    image: tuple[int, int] | None = None  # height and width, where a row is a picture

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
    """A dataset in memory, on its way into the cache, where its features become float32 `x / scale`."""

    x_train: NDArray[Any]
    y_train: NDArray[np.integer[Any]]
    x_test: NDArray[Any]
    y_test: NDArray[np.integer[Any]]
    classes: int
    image: tuple[int, int] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """How to make one dataset, and by which identity it is known in the cache."""

    name: str  # as `trainoff data get` takes it: a name, or the path of the user's own data
    title: str  # as records and seeds know it: the same wherever the file lies
    key: str  # the name of its folder in the cache
    identity: str
    make: Callable[[Path | None, Progress], Made]
