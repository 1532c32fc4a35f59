"""dask-average: the algorithm of spark-average, on Dask. Nothing differs but how weights and work travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainoff.engines.contract import Job, Knob, Watch
from trainoff.engines.dask.base import DaskEngine
from trainoff.engines.shared.local_sgd.driver import Averaging, SklearnAveraging

if TYPE_CHECKING:
    from trainoff.study import Trial


class OnDask(Averaging, DaskEngine):
    """A desk on every worker, the average in the client."""

    apart: ClassVar[bool] = False  # whether every worker has rows of its own
    knobs: ClassVar[Mapping[str, Knob]] = {**Averaging.knobs, **DaskEngine.knobs}

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.dask.worker_pool import Crew

        assert self.session
        apart = self.apart and job.mode != "search" and job.workers > 1
        self.crew = Crew(self.session, job, self.maker, apart=apart)
        with watch.phase("data_load"):
            self.crew.lay_out()
        if job.mode != "search":
            with watch.phase("ship"), self.session.failures():
                self.crew.ship()


class DaskAverage(OnDask):
    """Plain numpy on every worker."""

    name = "dask-average"
    about = "SparkNet's algorithm on Dask: tau local steps in numpy on every worker, then an average"


class DaskSklearn(SklearnAveraging, OnDask):
    """MLPClassifier and SGDClassifier on every worker. The mode search is joblib's, which cannot spread one fit."""

    name = "dask-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every Dask worker's own rows, weights averaged"
    modules = (*OnDask.modules, "sklearn", "joblib")
    on_workers = (*OnDask.on_workers, "sklearn")
    knobs: ClassVar[Mapping[str, Knob]] = {**SklearnAveraging.knobs, **OnDask.knobs}
    apart = True

    def differs(self, trial: Trial) -> str | None:
        if trial.mode != "search" and trial.workers > 1:
            return "every worker draws its batches from its own part of the rows"
        return super().differs(trial)
