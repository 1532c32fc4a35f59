"""What a worker does in a round: it puts the weights into its learner, makes some steps, and tells what came of it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Order
from trainoff.data.order import share
from trainoff.engines.contract import Job
from trainoff.models import Weights, flatten, unflatten
from trainoff.study.seeds import derive

Floats = NDArray[np.float32]


class Learner(Protocol):
    """What sits at a desk."""

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Learn from these rows; returns the loss before, if it is known."""

    def put(self, weights: Weights) -> None:
        """Go on from these weights."""

    @property
    def weights(self) -> Weights: ...

    def labels(self, x: Any) -> NDArray[np.int64]:
        """The class of each row."""


Maker = Callable[[Job], Learner]


class Portion(Protocol):
    """Which rows a worker learns from in a step, by their places in what it has."""

    def rows(self, step: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class OfEveryBatch:
    """The worker has all rows, and takes its slice of every global batch."""

    order: Order
    worker: int
    workers: int

    def rows(self, step: int) -> NDArray[np.int64]:
        return share(self.order.batch(step), self.worker, self.workers)


@dataclass(frozen=True)
class OfItsOwn:
    """The worker has so many rows of its own, and walks through them in an order of its own, as fast as the others."""

    order: Order  # of all rows; says how many steps make an epoch
    worker: int
    count: int

    def rows(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step - 1, self.order.steps_per_epoch)
        return share(_own_epoch(self, epoch), place, self.order.steps_per_epoch)


@lru_cache(maxsize=64)  # a process may hold the desks of several workers
def _own_epoch(portion: OfItsOwn, epoch: int) -> NDArray[np.int64]:
    order = portion.order
    seed = derive("own order", order.dataset, order.seed, portion.worker, epoch)
    return np.random.default_rng(seed).permutation(portion.count)


@dataclass(frozen=True)
class Work:
    """What a worker brings back."""

    rows: int
    loss: float  # the mean over the rows; NaN where the learner does not know it
    weights: Any  # one vector, or a `Change` of it
    began: float  # by the clock of the worker's machine
    ended: float
    gc_s: float  # of that time, what Python's garbage collection took


def make_steps(learner: Learner, job: Job, portion: Portion, weights: Floats, first: int, last: int) -> Work:
    """Go on from these weights with the steps from first to last."""
    began, collected = time.time(), collecting.seconds
    learner.put(unflatten(job.model, weights))
    rows, loss = 0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # the driver's watch notices
        for step in range(first, last + 1):
            mine = portion.rows(step)
            if len(mine):  # the last batch of an epoch may have fewer rows than there are workers
                before = learner.step(step, mine, float(job.rates[step - 1]))
                loss += len(mine) * (np.nan if before is None else before)
                rows += len(mine)
    after = flatten(learner.weights).astype(np.float32, copy=False)
    return Work(rows, loss / max(rows, 1), after, began, time.time(), collecting.seconds - collected)


class Collecting(threading.local):
    """How long Python's garbage collection has taken in this thread, which is a worker's own."""

    seconds = since = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self.since = now
        else:
            self.seconds += now - self.since


collecting = Collecting()
gc.callbacks.append(collecting)


class Silence:
    """A watch for learners that speak: here nobody listens."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()
