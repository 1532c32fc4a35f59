"""Where a worker of Dask works: an actor, which keeps its learner and its rows from round to round."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainoff.engines.contract import Job
from trainoff.engines.shared.local_sgd.worker import Change, Maker, OfEveryBatch, OfItsOwn, Work, make_steps
from trainoff.models import flatten


@dataclass(frozen=True)
class Failure:
    """What went wrong on a worker, in its own words; an exception would lose its traceback on the way."""

    said: str


class Desk:
    """One worker's place. With `apart`, its rows are its own; else it has all, and takes its slice of every batch.

    With `sparse`, it tells only which weights have changed.
    """

    def __init__(
        self, rows: tuple[Any, Any], job: Job, maker: Maker, worker: int, *, apart: bool, sparse: bool
    ) -> None:
        x, y = rows
        self._sparse = sparse
        self._job = replace(job, data=replace(job.data, x_train=x, y_train=y))
        self._portion = OfItsOwn(job.order, worker, len(y)) if apart else OfEveryBatch(job.order, worker, job.workers)
        self._learner = maker(self._job)
        self._weights = flatten(job.weights)

    def work(self, weights: Any, first: int, last: int) -> Work | Failure:
        """Go on from these weights, or from the last ones with a change, with the steps from first to last."""
        try:
            if isinstance(weights, Change):
                weights.apply(self._weights)
            else:
                self._weights = np.array(weights)
            done = make_steps(self._learner, self._job, self._portion, self._weights, first, last)
            return replace(done, weights=Change.between(self._weights, done.weights)) if self._sparse else done
        except Exception:
            return Failure(traceback.format_exc())

    def rest(self) -> None:
        """Nothing, to see what asking takes."""
