"""A perceptron that learns batch by batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.numpy.learners import PREDICT_ROWS, Floats, Network, buffers, forward
from trainoff.engines.numpy.updates import make_optimizer
from trainoff.models import Weights, flatten

SCIPY_ROWS = 4096  # of all rows, so many are looked at at a time


class Perceptron:
    """The network, its optimiser, and the rows it learns from."""

    def __init__(self, job: Job) -> None:
        whole = job.params["optimizer"] == "l-bfgs"
        rows = min(SCIPY_ROWS if whole else job.order.batch_size, job.order.rows)
        self.network = Network(job.model, job.weights, rows)
        self._optimizer = make_optimizer(job.params, job.model.parameters)
        # Without the memory map's class around them, the arrays are taken from with less ado.
        self._x, self._y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)

    @property
    def weights(self) -> Weights:
        return self.network.weights

    def put(self, weights: Weights) -> None:
        """Go on from these weights."""
        self.network.flat[...] = flatten(weights)

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Learn from these rows; returns the loss before."""
        loss = self.network.differentiate(self._x, self._y, rows)
        self._optimizer.step(self.network.flat, self.network.flat_gradient, rate)
        return loss

    def labels(self, x: Floats) -> NDArray[np.int64]:
        model = self.network.model
        found = np.empty(len(x), np.int64)
        layers = buffers(model.sizes[1:], PREDICT_ROWS)
        for start in range(0, len(x), PREDICT_ROWS):
            part = np.asarray(x[start : start + PREDICT_ROWS])
            outputs = [part, *(layer[: len(part)] for layer in layers)]
            forward(model, self.weights, outputs)
            np.argmax(outputs[-1], axis=1, out=found[start : start + len(part)])
        return found
