"""spark-average: SparkNet's algorithm. Every worker makes tau steps of its own, then their weights are averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.local_sgd.driver import Averaging, SklearnAveraging
from trainoff.engines.spark.base import SparkEngine, fit

if TYPE_CHECKING:
    from trainoff.study import Trial


class OnSpark(Averaging, SparkEngine):
    """Workers on the executors, the average in the driver."""

    def size(self, trial: Trial) -> int:
        return fit(trial).count

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.spark.worker_pool import Crew

        assert self.session
        with watch.phase("ship"), self.session.failures():
            self.crew = Crew(self.session, job, self.maker)
            self.session.rows_per_task = self._rows_per_task(job)
            self.crew.ship()

    def _rows_per_task(self, job: Job) -> int:
        """How many samples a task sees: those of a round, or of a whole candidate."""
        if job.mode == "search":
            from trainoff.engines.shared.local_sgd.worker import judged

            return judged(job).order.rows * job.order.epochs
        assert self.session
        return int(job.params["tau"]) * job.order.batch_size // self.session.executors


class SparkAverage(OnSpark):
    """Plain numpy on every executor."""

    name = "spark-average"
    about = "SparkNet: tau local steps in numpy on every executor, then an average"


class SparkSklearn(SklearnAveraging, OnSpark):
    """MLPClassifier and SGDClassifier on every executor."""

    name = "spark-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every executor, weights averaged"
    modules = (*OnSpark.modules, "sklearn")
    on_executors = ("numpy", "sklearn")
