"""The workers of local SGD on Spark: one per executor, and a Spark job for every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.local_sgd import (
    BatchShare,
    Floats,
    LearnerFactory,
    LocalLearner,
    RoundResult,
    factors,
    make_steps,
    select_best,
    train_candidate,
)
from trainoff.engines.shared.recovery import run_with_polling
from trainoff.engines.shared.shipping import pack_rows

if TYPE_CHECKING:
    from trainoff.engines.spark.session import SparkConnection


class SparkWorkerPool:
    """One worker per executor, each with all training rows, which are sent once and as arrays."""

    sparse = False

    def __init__(self, session: SparkConnection, job: Job, make_learner: LearnerFactory) -> None:
        self._session, self._job, self._make_learner = session, job, make_learner
        self.workers = session.executors
        # Cached, so that part i goes to the same executor in every round.
        self._parts = session.context.parallelize(range(self.workers), self.workers).cache()
        self._shipped = session.context.broadcast(pack_rows(job))
        self._find = partial(find_learner, session.context.applicationId, make_learner, self._shipped)
        self._parts.mapPartitions(partial(prepare, self._find)).collect()

    def round(self, weights: Floats, first: int, last: int) -> list[RoundResult]:
        """Have every worker make the steps from first to last."""
        sent = self._session.context.broadcast(weights)
        task = partial(work, self._find, sent, self.workers, first, last)
        results: list[RoundResult] = self._parts.mapPartitionsWithIndex(task).collect()
        sent.destroy()
        return results

    def search(self, watch: Watch) -> Floats:
        """Train every candidate, one per task; returns the weights of the best."""
        tried, shipped, make_learner = factors(self._job.params["candidates"]), self._shipped, self._make_learner
        candidates = self._session.context.parallelize(tried, len(tried))
        tasks = candidates.map(lambda factor: train_candidate(make_learner, shipped.value, factor))

        def poll() -> None:
            if self._session.alive:
                watch.progress(0, None, 0)

        return select_best(run_with_polling(tasks.collect, poll), self._job, watch)


FindLearner = Callable[[], tuple[Job, LocalLearner]]
_learners: dict[str, LocalLearner] = {}


def find_learner(trial: str, make_learner: LearnerFactory, shipped: Any) -> tuple[Job, LocalLearner]:
    """Return the job, and this process's learner; made on first use, and in a process that replaces a lost one."""
    if trial not in _learners:
        _learners[trial] = make_learner(shipped.value)
    return shipped.value, _learners[trial]


def prepare(find: FindLearner, parts: Iterator[int]) -> Iterator[int]:
    """Fetch the rows and make the learner, before the clock starts. Run by Spark in an executor's Python process."""
    yield from parts
    find()


def work(
    find: FindLearner, weights: Any, workers: int, first: int, last: int, worker: int, parts: Iterator[int]
) -> Iterator[RoundResult]:
    """Make the steps from first to last, on this worker's share of each batch. Run by Spark."""
    list(parts)  # Spark uses a process again only if it has read all that was sent to it
    job, learner = find()
    yield make_steps(learner, job, BatchShare(job.order, worker, workers), weights.value, first, last)
