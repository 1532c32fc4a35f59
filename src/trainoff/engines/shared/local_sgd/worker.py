"""What a worker does in a round: it puts the weights into its learner, makes some steps, and tells what came of it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Order
from trainoff.data.batch_order import share
from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.shipping import expand
from trainoff.models import Weights, flatten, unflatten
from trainoff.study.trial import derive

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


HELD_BACK = 10  # one row in so many judges the candidates


@dataclass(frozen=True)
class Candidate:
    """A network that was trained with a multiple of the study's learning rate."""

    factor: float
    accuracy: float  # on the rows that were held back
    weights: Floats


def factors(count: int) -> list[float]:
    """So many multiples of the learning rate, by factors of two around 1."""
    return [2.0 ** (number - count // 2) for number in range(count)]


def take_best(found: Sequence[Candidate], job: Job, watch: Watch) -> Floats:
    """The weights of the best candidate, after telling the watch of it."""
    best = max(found, key=lambda candidate: candidate.accuracy)
    seen = len(found) * judged(job).order.rows * job.order.epochs
    watch.progress(job.order.steps, None, seen)
    watch.due()
    watch.snapshot(seen, unflatten(job.model, best.weights))
    watch.count("best_learning_rate", best.factor * job.params["learning_rate"])
    watch.count("candidates", len(found))
    return best.weights


def judged(job: Job) -> Job:
    """The job on as many rows as are left when some are held back."""
    rows = max(1, job.order.rows - job.order.rows // HELD_BACK)
    return replace(job, order=replace(job.order, rows=rows, batch_size=min(job.order.batch_size, rows)))


def attempt(maker: Maker, job: Job, factor: float) -> Candidate:
    """Train one candidate and judge it. Run on a worker, which has all rows."""
    job = judged(job)
    job = replace(job, rates=job.rates * factor)
    # Drawn at random, because the rows of a file may be in the order of their classes.
    mixed = np.random.default_rng(job.order.seed).permutation(len(job.data.y_train))
    kept, judging = mixed[: job.order.rows], mixed[job.order.rows :]
    learner = maker(job)
    with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too large loses by itself
        for step, rows in job.order.batches():
            learner.step(step, kept[rows], float(job.rates[step - 1]))
    data = job.data
    weights = flatten(learner.weights).astype(np.float32, copy=False)
    if not len(judging) or not np.isfinite(weights).all():
        return Candidate(factor, 0.0, weights)
    x = data.x_train[judging]
    right = learner.labels(x if data.sparse else expand(np.asarray(x))) == data.y_train[judging]
    return Candidate(factor, float(np.mean(right)), weights)


@dataclass(frozen=True)
class Change:
    """Some places of a vector, and their new values."""

    places: NDArray[np.int32]
    values: Floats

    @staticmethod
    def between(before: Floats, after: Floats) -> Change:
        places = np.flatnonzero(before != after).astype(np.int32)
        return Change(places, after[places])

    def apply(self, weights: Floats) -> None:
        """Make the change in a vector."""
        weights[self.places] = self.values

    def add_to(self, mean: Floats, before: Floats, part: np.float32) -> None:
        """Add a part of the change from `before` to a mean."""
        mean[self.places] += part * (self.values - before[self.places])
