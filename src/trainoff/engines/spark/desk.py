"""Where a worker works: a learner that stays in the Python process of an executor from round to round.

Spark keeps these processes (`spark.python.worker.reuse`), so the rows, the optimiser's memory and every buffer are
made once; a round brings weights and takes weights away. Of an executor that dies only the optimiser's memory is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.data.order import share
from trainoff.engines.contract import Job
from trainoff.engines.spark.shipping import arrived
from trainoff.models import Weights, flatten, unflatten

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


@dataclass(frozen=True)
class Errand:
    """What the driver asks of every worker in one round: the steps from first to last, on its share of each batch."""

    trial: str
    maker: Maker
    job: Any  # broadcast: the Job with the training rows, without what only the driver has
    weights: Any  # broadcast: one vector
    first: int
    last: int
    workers: int


@dataclass(frozen=True)
class Work:
    """What a worker brings back."""

    rows: int
    loss: float  # the mean over the rows; NaN where the learner does not know it
    weights: Floats


_desks: dict[str, Learner] = {}


def work(errand: Errand, worker: int, parts: Iterator[int]) -> Iterator[Work]:
    """Do the errand. Run by Spark in an executor's Python process."""
    list(parts)  # Spark uses a process again only if it has read all that was sent to it
    job, learner = errand.job.value, desk(errand)
    learner.put(unflatten(job.model, errand.weights.value))
    rows, loss = 0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # the driver's watch notices
        for step in range(errand.first, errand.last + 1):
            mine = share(job.order.batch(step), worker, errand.workers)
            if len(mine):  # the last batch of an epoch may have fewer rows than there are workers
                before = learner.step(step, mine, float(job.rates[step - 1]))
                loss += len(mine) * (np.nan if before is None else before)
                rows += len(mine)
    yield Work(rows, loss / max(rows, 1), flatten(learner.weights).astype(np.float32, copy=False))


def sit_down(errand: Errand, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """Fetch the rows and prepare the learner, before the clock starts."""
    yield from parts
    desk(errand)


def desk(errand: Errand) -> Learner:
    """The learner of this process; made on first use, and again in a process that stands in for a lost one."""
    if errand.trial not in _desks:
        _desks[errand.trial] = errand.maker(arrived(errand.job.value))
    return _desks[errand.trial]


class Silence:
    """A watch for learners that speak: here nobody listens."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()
