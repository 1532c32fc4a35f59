"""dask-average: the algorithm of spark-average, on Dask. Nothing differs but how weights and work travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trainoff.engines.contract import Job, Knob, Watch
from trainoff.engines.dask.base import DaskEngine
from trainoff.engines.shared.local_sgd.driver import Averaging


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
