"""L-BFGS: scipy's, on all rows at every iteration. The peer of systems that train this way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job, Watch
from trainoff.engines.numpy.dense import SCIPY_ROWS, Perceptron
from trainoff.engines.numpy.learners import Network

CORRECTIONS = 10  # how many past steps shape the next one


def minimize(learner: Perceptron, job: Job, watch: Watch) -> None:
    """As many iterations as there are epochs, or until scipy can get no further."""
    from scipy.optimize import minimize as scipy_minimize

    network = learner.network
    objective = Objective(network, job)
    progress = Iterations(network, job, watch, objective)
    # Only the number of iterations ends it, not a loss that changes little.
    options = {"maxiter": job.order.epochs, "maxfun": 10**9, "maxcor": CORRECTIONS, "ftol": 0.0, "gtol": 0.0}
    start = network.flat.astype(np.float64)
    result = scipy_minimize(objective, start, jac=True, method="L-BFGS-B", callback=progress, options=options)
    progress.finish()
    watch.count("evaluations", objective.evaluations)
    if not watch.should_stop and progress.step < job.order.epochs:
        print(f"scipy gave up after {progress.step} iterations: {result.message}")
        watch.count("gave_up_after", progress.step)


class Objective:
    """The loss over all rows and its gradient, summed up part by part."""

    def __init__(self, network: Network, job: Job) -> None:
        self.evaluations = 0
        self._network = network
        self._x, self._y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        count = len(self._y)
        self._parts = [np.arange(start, min(start + SCIPY_ROWS, count)) for start in range(0, count, SCIPY_ROWS)]

    def __call__(self, flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        self.evaluations += 1
        network = self._network
        network.flat[...] = flat
        loss, gradient = 0.0, np.zeros_like(flat)
        for rows in self._parts:
            share = len(rows) / len(self._y)
            loss += share * network.differentiate(self._x, self._y, rows)
            gradient += share * network.flat_gradient
        return loss, gradient


class Iterations:
    """Tells the watch of each iteration, and ends the training when it says so."""

    def __init__(self, network: Network, job: Job, watch: Watch, objective: Objective) -> None:
        self._network, self._rows, self._watch, self._objective = network, job.order.rows, watch, objective
        self.step = self._seen = self._handed = 0
        self._last = network.flat.astype(np.float64)

    def __call__(self, intermediate_result: Any) -> None:
        self.step += 1
        self._seen = self._objective.evaluations * self._rows  # each looks at all rows
        self._last = intermediate_result.x.copy()
        self._watch.progress(self.step, float(intermediate_result.fun), self._seen)
        if self._watch.due():
            self._hand_over()
        if self._watch.should_stop:
            raise StopIteration

    def _hand_over(self) -> None:
        self._network.flat[...] = self._last
        self._watch.snapshot(self._seen, self._network.weights)
        self._handed = self.step

    def finish(self) -> None:
        """Leave the network with the last iteration's weights, and hand them over if nobody has."""
        self._network.flat[...] = self._last
        if self.step > self._handed:
            self._hand_over()
