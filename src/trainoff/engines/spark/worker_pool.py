"""The pool of a training by rounds on Spark: one worker per executor, a job of Spark's for every round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.local_sgd import (
    BatchShare,
    Floats,
    LearnerFactory,
    LocalLearner,
    RateCandidate,
    RoundResult,
    factors,
    make_steps,
    select_best,
    train_candidate,
)
from trainoff.engines.shared.recovery import with_heartbeat
from trainoff.engines.shared.shipping import pack_rows
from trainoff.models import flatten

if TYPE_CHECKING:
    from trainoff.engines.spark.session import SparkConnection


class SparkWorkerPool:
    """One worker per executor, each with all training rows at hand."""

    sparse = False

    def __init__(self, session: SparkConnection, job: Job, make_learner: LearnerFactory) -> None:
        self._job, self._make_learner, self._session = job, make_learner, session
        self.workers = session.executors
        self._spark = session.context
        # Cached, the parts have a home: part i goes to the same executor in every round.
        self._parts = self._spark.parallelize(range(session.executors), session.executors).cache()

    def ship(self) -> None:
        """Send the rows to every executor, once and as arrays."""
        self._shipped = self._spark.broadcast(pack_rows(self._job))
        self._send(sit_down, flatten(self._job.weights), 1, 0)

    def round(self, weights: Floats, first: int, last: int) -> list[RoundResult]:
        """Everybody makes the steps from first to last."""
        return self._send(work, weights, first, last)

    def rest(self) -> None:
        """A round in which nothing travels and nobody works: what it takes is Spark's own."""
        self._send(do_nothing, np.zeros(0, np.float32), 1, 0)

    def search(self, watch: Watch) -> Floats:
        """Try every candidate, one a task; returns the weights of the best."""
        tried, shipped, make_learner = factors(self._job.params["candidates"]), self._shipped, self._make_learner
        tasks = self._spark.parallelize(tried, len(tried)).map(partial(_attempt, make_learner, shipped))

        def beat() -> None:
            if self._session.alive:
                watch.progress(0, None, 0)

        found: list[RateCandidate] = with_heartbeat(tasks.collect, beat)
        return select_best(found, self._job, watch)

    def _send(self, what: Any, weights: Floats, first: int, last: int) -> list[Any]:
        sent = self._spark.broadcast(weights)
        task = WorkerTask(self._spark.applicationId, self._make_learner, self._shipped, sent, first, last, self.workers)
        result: list[Any] = self._parts.mapPartitionsWithIndex(partial(what, task)).collect()
        sent.destroy()
        return result


def _attempt(make_learner: LearnerFactory, shipped: Any, factor: float) -> RateCandidate:
    return train_candidate(make_learner, shipped.value, factor)


@dataclass(frozen=True)
class WorkerTask:
    """What the driver asks of every worker in one round: the steps from first to last, on its share of each batch."""

    trial: str
    make_learner: LearnerFactory
    job: Any  # broadcast: the Job with the training rows, without what only the driver has
    weights: Any  # broadcast: one vector
    first: int
    last: int
    workers: int


_desks: dict[str, LocalLearner] = {}


def work(task: WorkerTask, worker: int, parts: Iterator[int]) -> Iterator[RoundResult]:
    """Do the task. Run by Spark in an executor's Python process."""
    list(parts)  # Spark uses a process again only if it has read all that was sent to it
    job, learner = task.job.value, desk(task)
    portion = BatchShare(job.order, worker, task.workers)
    yield make_steps(learner, job, portion, task.weights.value, task.first, task.last)


def sit_down(task: WorkerTask, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """Fetch the rows and prepare the learner, before the clock starts."""
    yield from parts
    desk(task)


def do_nothing(task: WorkerTask, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """A round without weights and without work."""
    yield from parts


def desk(task: WorkerTask) -> LocalLearner:
    """The learner of this process; made on first use, and again in a process that stands in for a lost one."""
    if task.trial not in _desks:
        _desks[task.trial] = task.make_learner(task.job.value)
    return _desks[task.trial]
