"""Training by rounds: the driver sends weights, every worker makes some steps of its own, the driver averages.

With one step a round and plain gradient descent the average is the step on the whole batch, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.data import Order
from trainoff.engines.contract import Job, Watch
from trainoff.engines.spark import desk
from trainoff.engines.spark.desk import Errand, Floats, Maker, Work
from trainoff.engines.spark.shipping import WEIGHT_BYTES, with_rows
from trainoff.models import flatten, unflatten

if TYPE_CHECKING:
    from trainoff.engines.spark.session import Session


class Crew:
    """One worker per executor, each with all training rows at hand."""

    def __init__(self, session: Session, job: Job, maker: Maker) -> None:
        self._job, self._maker = job, maker
        self.workers = session.executors
        self._spark = session.context
        # Cached, the parts have a home: part i goes to the same executor in every round.
        self._parts = self._spark.parallelize(range(session.executors), session.executors).cache()

    def ship(self) -> None:
        """Send the rows to every executor, once and as arrays."""
        self.shipped = self._spark.broadcast(with_rows(self._job))
        self._send(desk.sit_down, flatten(self._job.weights), 1, 0)

    def round(self, weights: Floats, first: int, last: int) -> tuple[Floats, float]:
        """Everybody makes the steps from first to last; returns the average of the weights, and the loss."""
        done: list[Work] = [work for work in self._send(desk.work, weights, first, last) if work.rows]
        shares = np.array([work.rows for work in done]) / sum(work.rows for work in done)
        mean = np.zeros_like(weights)
        for part, work in zip(shares, done, strict=True):
            mean += np.float32(part) * work.weights
        return mean, float(sum(part * work.loss for part, work in zip(shares, done, strict=True)))

    def _send(self, what: Any, weights: Floats, first: int, last: int) -> list[Any]:
        sent = self._spark.broadcast(weights)
        errand = Errand(self._spark.applicationId, self._maker, self.shipped, sent, first, last, self.workers)
        result: list[Any] = self._parts.mapPartitionsWithIndex(partial(what, errand)).collect()
        sent.destroy()
        return result


def train(crew: Crew, job: Job, watch: Watch, tau: int) -> Floats:
    """All rounds of the job, each of `tau` steps; returns the weights they lead to."""
    weights = flatten(job.weights)
    rounds = 0
    for first, last in spans(job.order, tau):
        weights, loss = crew.round(weights, first, last)
        rounds += 1
        watch.progress(last, None if np.isnan(loss) and np.isfinite(weights).all() else loss)
        if watch.due():
            watch.snapshot(job.order.samples_after(last), unflatten(job.model, weights))
        if watch.should_stop:
            break
    watch.count("rounds", rounds)
    watch.count("least_bytes_per_round", 2 * crew.workers * WEIGHT_BYTES * job.model.parameters)
    return weights


def spans(order: Order, tau: int) -> Iterator[tuple[int, int]]:
    """The first and the last step of every round. A round ends with its epoch, though it may have fewer steps."""
    for end in range(order.steps_per_epoch, order.steps + 1, order.steps_per_epoch):
        for first in range(end - order.steps_per_epoch + 1, end + 1, tau):
            yield first, min(first + tau - 1, end)
