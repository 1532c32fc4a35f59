"""Training by rounds: the driver sends weights, every worker makes some steps of its own, the driver averages.

With one step a round and plain gradient descent the average is the step on the whole batch, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.data import Data, Order
from trainoff.engines.contract import Job, Watch
from trainoff.engines.spark import desk
from trainoff.engines.spark.desk import Errand, Floats, Maker, Work
from trainoff.models import flatten, unflatten

if TYPE_CHECKING:
    from trainoff.engines.spark.session import Session

WEIGHT = 4  # bytes of a float32


class Crew:
    """One worker per executor, each with all training rows at hand."""

    def __init__(self, session: Session, job: Job, maker: Maker) -> None:
        self._session, self._job, self._maker = session, job, maker
        self.workers = session.executors
        self._spark = session.context
        # Cached, the parts have a home: part i goes to the same executor in every round.
        self._parts = self._spark.parallelize(range(session.executors), session.executors).cache()

    def ship(self) -> None:
        """Send the rows to every executor, once and as arrays."""
        self.shipped = self._spark.broadcast(stripped(self._job))
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
    watch.count("least_bytes_per_round", 2 * crew.workers * WEIGHT * job.model.parameters)
    return weights


def spans(order: Order, tau: int) -> Iterator[tuple[int, int]]:
    """The first and the last step of every round. A round ends with its epoch, though it may have fewer steps."""
    for end in range(order.steps_per_epoch, order.steps + 1, order.steps_per_epoch):
        for first in range(end - order.steps_per_epoch + 1, end + 1, tau):
            yield first, min(first + tau - 1, end)


def stripped(job: Job) -> Job:
    """The job as workers need it: with the training rows in memory, without the test rows, cluster and folder."""
    data = job.data
    rows = replace(data, x_train=in_memory(data.x_train), y_train=np.array(data.y_train), **_no_test_rows(data))
    return replace(job, data=rows, cluster=None, folder=Path())  # type: ignore[arg-type]  # workers have no cluster


def in_memory(x: Any) -> Any:
    """The rows without the file they are mapped from."""
    if hasattr(x, "compact"):
        part = x.compact()
        return replace(part, **{name: np.array(getattr(part, name)) for name in ("starts", "columns", "values")})
    return np.array(x)


def _no_test_rows(data: Data) -> dict[str, Any]:
    return {"x_test": in_memory(data.x_test[:0]), "y_test": np.array(data.y_test[:0])}
