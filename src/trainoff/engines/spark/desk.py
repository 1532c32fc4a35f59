"""Where a worker of Spark works: a learner that stays in the Python process of an executor from round to round.

Spark keeps these processes (`spark.python.worker.reuse`), so the rows, the optimiser's memory and every buffer are
made once; a round brings weights and takes weights away. Of an executor that dies only the optimiser's memory is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainoff.engines.shared.local_sgd.worker import Learner, Maker, OfEveryBatch, Work, make_steps


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


_desks: dict[str, Learner] = {}


def work(errand: Errand, worker: int, parts: Iterator[int]) -> Iterator[Work]:
    """Do the errand. Run by Spark in an executor's Python process."""
    list(parts)  # Spark uses a process again only if it has read all that was sent to it
    job, learner = errand.job.value, desk(errand)
    portion = OfEveryBatch(job.order, worker, errand.workers)
    yield make_steps(learner, job, portion, errand.weights.value, errand.first, errand.last)


def sit_down(errand: Errand, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """Fetch the rows and prepare the learner, before the clock starts."""
    yield from parts
    desk(errand)


def do_nothing(errand: Errand, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """A round without weights and without work."""
    yield from parts


def desk(errand: Errand) -> Learner:
    """The learner of this process; made on first use, and again in a process that stands in for a lost one."""
    if errand.trial not in _desks:
        _desks[errand.trial] = errand.maker(errand.job.value)
    return _desks[errand.trial]
