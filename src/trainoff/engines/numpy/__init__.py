"""numpy: the network in plain numpy and float32, as fast as the matrix products underneath.

Every array is allocated once and every step works in place, so that nearly all the time goes into the
products of the BLAS, which uses the cores it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Engine, Job, Watch
from trainoff.models import BETA1, BETA2, EPSILON, Mlp, Weights, flatten, unflatten

Floats = NDArray[np.float32]

PREDICT_ROWS = 1024  # so many rows and their hidden layers stay in the cache


class Numpy(Engine):
    """Plain numpy: the least that training needs, and the yardstick for the others."""

    name = "numpy"
    about = "plain numpy in float32, one process"
    package = "numpy"
    modules = ("numpy",)

    def open(self, job: Job, watch: Watch) -> None:
        rows = min(job.order.batch_size, job.order.rows)
        self._network = Network(job.model, job.weights, rows)
        self._optimizer = make_optimizer(job.params, job.model.parameters)

    def train(self, job: Job, watch: Watch) -> None:
        network, optimizer = self._network, self._optimizer
        # Without the memory map's class around them, the arrays are taken from with less ado.
        x, y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        with np.errstate(over="ignore", invalid="ignore"):  # the watch notices a loss that is no number
            for step, rows in job.order.batches():
                loss = network.differentiate(x, y, rows)
                optimizer.step(network.flat, network.flat_gradient, float(job.rates[step - 1]))
                watch.progress(step, loss)
                if watch.due():
                    watch.snapshot(job.order.samples_after(step), network.weights)
                if watch.should_stop:
                    break

    def predict(self, x: Floats) -> NDArray[np.int64]:
        network = self._network
        found = np.empty(len(x), np.int64)
        layers = buffers(network.model.sizes[1:], PREDICT_ROWS)
        for start in range(0, len(x), PREDICT_ROWS):
            part = np.asarray(x[start : start + PREDICT_ROWS])
            outputs = [part, *(layer[: len(part)] for layer in layers)]
            forward(network.model, network.weights, outputs)
            np.argmax(outputs[-1], axis=1, out=found[start : start + len(part)])
        return found


class Network:
    """The weights, their gradient, and room for one batch on its way forward and back.

    `weights` and `gradient` are views of `flat` and `flat_gradient`: a batch works on the matrices,
    an update on the vectors.
    """

    def __init__(self, model: Mlp, weights: Weights, rows: int) -> None:
        self.model = model
        self.flat: Floats = flatten(weights).astype(np.float32)
        self.flat_gradient = np.zeros_like(self.flat)
        self.weights = unflatten(model, self.flat)
        self.gradient = unflatten(model, self.flat_gradient)
        self._outputs = buffers(model.sizes, rows)  # of each layer; the first is the batch itself
        self._deltas = buffers(model.sizes[1:], rows)  # the loss by each layer's weighted sums
        self._masks = [np.empty((rows, size), np.bool_) for size in model.sizes[1:-1]]
        self._targets = np.empty((rows, model.sizes[-1]), np.float32)
        self._decay = unflatten(model, np.empty_like(self.flat))[::2] if model.l2 else []
        self._one_hot = np.eye(model.sizes[-1], dtype=np.float32)

    def differentiate(self, x: Floats, y: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> float:
        """Put the gradient of the loss on these rows into `gradient`; returns the loss."""
        count = len(rows)
        outputs = [layer[:count] for layer in self._outputs]
        # "clip" lets numpy write straight into the buffer; the rows are known to exist.
        np.take(x, rows, axis=0, out=outputs[0], mode="clip")
        targets = self._targets[:count]
        np.take(self._one_hot, y[rows], axis=0, out=targets, mode="clip")
        forward(self.model, self.weights, outputs)
        loss = self._delta_at_the_end(outputs[-1], targets)
        self._backward(outputs)
        return loss + self._add_l2()

    def _delta_at_the_end(self, scores: Floats, targets: Floats) -> float:
        """The softmax less the targets, in the last delta; returns the mean cross-entropy."""
        delta = self._deltas[-1][: len(scores)]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=delta)
        sums = delta.sum(axis=1, keepdims=True)
        loss = (float(np.log(sums).sum()) - float(np.vdot(scores, targets))) / len(scores)
        delta /= sums
        delta -= targets
        delta /= len(scores)
        return loss

    def _backward(self, outputs: list[Floats]) -> None:
        """From the last delta to the first layer. Uses up the hidden layers' outputs."""
        deltas = [delta[: len(outputs[0])] for delta in self._deltas]
        for layer in reversed(range(len(deltas))):
            np.matmul(outputs[layer].T, deltas[layer], out=self.gradient[2 * layer])
            deltas[layer].sum(axis=0, out=self.gradient[2 * layer + 1])
            if layer:
                below = deltas[layer - 1]
                np.matmul(deltas[layer], self.weights[2 * layer].T, out=below)
                times_slope(self.model.activation, below, outputs[layer], self._masks[layer - 1])

    def _add_l2(self) -> float:
        """Add the penalty on the matrices to the gradient; returns its part of the loss."""
        l2, loss = self.model.l2, 0.0
        for layer, decay in enumerate(self._decay):
            matrix, gradient = self.weights[2 * layer], self.gradient[2 * layer]
            gradient += np.multiply(matrix, l2, out=decay)
            loss += l2 / 2 * float(np.vdot(matrix, matrix))
        return loss


def buffers(sizes: tuple[int, ...], rows: int) -> list[Floats]:
    """Room for `rows` rows at each of the layers."""
    return [np.empty((rows, size), np.float32) for size in sizes]


def forward(model: Mlp, weights: Weights, outputs: list[Floats]) -> None:
    """Fill `outputs` from the first, the input, to the last, the scores before the softmax."""
    last = outputs[-1]
    for layer, (below, above) in enumerate(pairwise(outputs)):
        np.matmul(below, weights[2 * layer], out=above)
        above += weights[2 * layer + 1]
        if above is not last:
            activate(model.activation, above)


def activate(name: str, sums: Floats) -> None:
    """Apply the activation in place."""
    if name == "relu":
        np.maximum(sums, 0, out=sums)
    elif name == "tanh":
        np.tanh(sums, out=sums)
    else:
        np.negative(sums, out=sums)
        np.exp(sums, out=sums)
        sums += 1
        np.reciprocal(sums, out=sums)


def times_slope(name: str, delta: Floats, outputs: Floats, mask: NDArray[np.bool_]) -> None:
    """Multiply `delta` in place by the activation's slope at `outputs`, which are used up."""
    if name == "relu":
        delta *= np.greater(outputs, 0, out=mask[: len(outputs)])
        return
    if name == "sigmoid":
        delta *= outputs
    else:
        np.square(outputs, out=outputs)
    np.subtract(1, outputs, out=outputs)
    delta *= outputs


class Optimizer(Protocol):
    """What turns a gradient into a step; `trainoff.models.optimisers` says the same in float64."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        """Move the weights in place by one step. May overwrite the gradient."""


class Sgd:
    """Plain gradient descent."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        gradient *= rate
        weights -= gradient


class Momentum:
    """Gradient descent with a velocity."""

    def __init__(self, size: int, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = np.zeros(size, np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._velocity *= self._momentum
        self._velocity += gradient
        np.multiply(self._velocity, rate, out=gradient)
        weights -= gradient


class Adam:
    """Adam, with both bias corrections drawn out of the vectors and into the rate and epsilon."""

    def __init__(self, size: int) -> None:
        self._steps = 0
        self._mean, self._square, self._scratch = np.zeros((3, size), np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._steps += 1
        unbias = sqrt(1 - BETA2**self._steps)
        scratch = np.multiply(gradient, 1 - BETA1, out=self._scratch)
        self._mean *= BETA1
        self._mean += scratch
        np.square(gradient, out=gradient)
        gradient *= 1 - BETA2
        self._square *= BETA2
        self._square += gradient
        np.sqrt(self._square, out=scratch)
        scratch += EPSILON * unbias
        np.divide(self._mean, scratch, out=scratch)
        scratch *= rate * unbias / (1 - BETA1**self._steps)
        weights -= scratch


def make_optimizer(params: Mapping[str, Any], size: int) -> Optimizer:
    """The optimiser that the trial names, for so many weights."""
    if params["optimizer"] == "adam":
        return Adam(size)
    if params["optimizer"] == "momentum":
        return Momentum(size, float(params["momentum"]))
    return Sgd()
