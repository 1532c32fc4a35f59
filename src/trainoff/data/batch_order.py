"""The deterministic batch order: the same rows in the same batches for every engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainoff.study.study import derive

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """A permutation of the rows per (seed, epoch), cut into global batches, the last one partial."""

    dataset: str
    rows: int
    batch_size: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.batch_size)

    @property
    def batch_sizes(self) -> list[int]:
        """Return the sizes of batches: the usual one, and that of an epoch's last batch if it is smaller."""
        full = min(self.batch_size, self.rows)
        return [full, self.rows % full] if self.rows % full else [full]

    @property
    def steps(self) -> int:
        """Return the number of updates in the training."""
        return self.steps_per_epoch * self.epochs

    def epoch(self, epoch: int) -> Rows:
        """Return the order of the rows in one epoch, counted from 0."""
        return np.random.default_rng(derive("order", self.dataset, self.seed, epoch)).permutation(self.rows)

    def batch(self, step: int) -> Rows:
        """Return the global batch of one step; `batches` is faster where all are needed."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        return _cached_epoch(self, epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def batches(self) -> Iterator[tuple[int, Rows]]:
        """Yield every global batch of the training as (step, rows); steps are counted from 1."""
        step = 0
        for epoch in range(self.epochs):
            order = self.epoch(epoch)
            for start in range(0, self.rows, self.batch_size):
                step += 1
                yield step, order[start : start + self.batch_size]

    def samples_after(self, step: int) -> int:
        """Return the number of samples seen after `step` updates."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.rows + rest * self.batch_size


@lru_cache(maxsize=2)
def _cached_epoch(order: Order, epoch: int) -> Rows:
    return order.epoch(epoch)


def spans(order: Order, tau: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last step of every round of `tau` steps. The last round of an epoch may have fewer."""
    for end in range(order.steps_per_epoch, order.steps + 1, order.steps_per_epoch):
        for first in range(end - order.steps_per_epoch + 1, end + 1, tau):
            yield first, min(first + tau - 1, end)


def share(rows: Rows, worker: int, workers: int) -> Rows:
    """Return one worker's slice of a global batch; slices differ by at most one row."""
    return rows[len(rows) * worker // workers : len(rows) * (worker + 1) // workers]
