"""The workers of local SGD on Spark: one per executor, and a Spark job for every round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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
from trainoff.engines.shared.recovery import run_with_polling
from trainoff.engines.shared.shipping import pack_rows
from trainoff.models import flatten

if TYPE_CHECKING:
    from trainoff.engines.spark.session import SparkConnection


class SparkWorkerPool:
    """One worker per executor, each with all training rows."""

    sparse = False

    def __init__(self, session: SparkConnection, job: Job, make_learner: LearnerFactory) -> None:
        self._job, self._make_learner, self._session = job, make_learner, session
        self.workers = session.executors
        self._spark = session.context
        # Cached, so that part i goes to the same executor in every round.
        self._parts = self._spark.parallelize(range(session.executors), session.executors).cache()

    def ship(self) -> None:
        """Send the rows to every executor, once and as arrays, and prepare its learner."""
        self._shipped = self._spark.broadcast(pack_rows(self._job))
        self._run(prepare, flatten(self._job.weights), 1, 0)

    def round(self, weights: Floats, first: int, last: int) -> list[RoundResult]:
        """Have every worker make the steps from first to last."""
        return self._run(work, weights, first, last)

    def search(self, watch: Watch) -> Floats:
        """Train every candidate, one per task; returns the weights of the best."""
        tried, shipped, make_learner = factors(self._job.params["candidates"]), self._shipped, self._make_learner
        tasks = self._spark.parallelize(tried, len(tried)).map(partial(_train_candidate, make_learner, shipped))

        def poll() -> None:
            if self._session.alive:
                watch.progress(0, None, 0)

        candidates: list[RateCandidate] = run_with_polling(tasks.collect, poll)
        return select_best(candidates, self._job, watch)

    def _run(self, function: Any, weights: Floats, first: int, last: int) -> list[Any]:
        sent = self._spark.broadcast(weights)
        task = WorkerTask(self._spark.applicationId, self._make_learner, self._shipped, sent, first, last, self.workers)
        results: list[Any] = self._parts.mapPartitionsWithIndex(partial(function, task)).collect()
        sent.destroy()
        return results


def _train_candidate(make_learner: LearnerFactory, shipped: Any, factor: float) -> RateCandidate:
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


_learners: dict[str, LocalLearner] = {}


def work(task: WorkerTask, worker: int, parts: Iterator[int]) -> Iterator[RoundResult]:
    """Do the task. Run by Spark in an executor's Python process."""
    list(parts)  # Spark uses a process again only if it has read all that was sent to it
    job, learner = task.job.value, learner_for(task)
    share = BatchShare(job.order, worker, task.workers)
    yield make_steps(learner, job, share, task.weights.value, task.first, task.last)


def prepare(task: WorkerTask, worker: int, parts: Iterator[int]) -> Iterator[int]:
    """Fetch the rows and make the learner, before the clock starts. Run by Spark."""
    yield from parts
    learner_for(task)


def learner_for(task: WorkerTask) -> LocalLearner:
    """Return this process's learner; made on first use, and again in a process that replaces a lost one."""
    if task.trial not in _learners:
        _learners[task.trial] = task.make_learner(task.job.value)
    return _learners[task.trial]
