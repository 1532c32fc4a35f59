"""The crew of a training by rounds on Spark: one worker per executor, a job of Spark's for every round."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.local_sgd.worker import Candidate, Floats, Maker, Work, attempt, factors, take_best
from trainoff.engines.shared.recovery import patiently
from trainoff.engines.shared.shipping import with_rows
from trainoff.engines.spark import desk
from trainoff.engines.spark.desk import Errand
from trainoff.models import flatten

if TYPE_CHECKING:
    from trainoff.engines.spark.session import Session


class Crew:
    """One worker per executor, each with all training rows at hand."""

    sparse = False

    def __init__(self, session: Session, job: Job, maker: Maker) -> None:
        self._job, self._maker, self._session = job, maker, session
        self.workers = session.executors
        self._spark = session.context
        # Cached, the parts have a home: part i goes to the same executor in every round.
        self._parts = self._spark.parallelize(range(session.executors), session.executors).cache()

    def ship(self) -> None:
        """Send the rows to every executor, once and as arrays."""
        self._shipped = self._spark.broadcast(with_rows(self._job))
        self._send(desk.sit_down, flatten(self._job.weights), 1, 0)

    def round(self, weights: Floats, first: int, last: int) -> list[Work]:
        """Everybody makes the steps from first to last."""
        return self._send(desk.work, weights, first, last)

    def rest(self) -> None:
        """A round in which nothing travels and nobody works: what it takes is Spark's own."""
        self._send(desk.do_nothing, np.zeros(0, np.float32), 1, 0)

    def search(self, watch: Watch) -> Floats:
        """Try every candidate, one a task; returns the weights of the best."""
        tried, shipped, maker = factors(self._job.params["candidates"]), self._shipped, self._maker
        tasks = self._spark.parallelize(tried, len(tried)).map(partial(_attempt, maker, shipped))

        def beat() -> None:
            if self._session.alive:
                watch.progress(0, None, 0)

        found: list[Candidate] = patiently(tasks.collect, beat)
        return take_best(found, self._job, watch)

    def _send(self, what: Any, weights: Floats, first: int, last: int) -> list[Any]:
        sent = self._spark.broadcast(weights)
        errand = Errand(self._spark.applicationId, self._maker, self._shipped, sent, first, last, self.workers)
        result: list[Any] = self._parts.mapPartitionsWithIndex(partial(what, errand)).collect()
        sent.destroy()
        return result


def _attempt(maker: Maker, shipped: Any, factor: float) -> Candidate:
    return attempt(maker, shipped.value, factor)
