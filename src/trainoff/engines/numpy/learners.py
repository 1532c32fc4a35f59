"""A dense network in numpy: one batch forward and back, every array allocated once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.shared.shipping import take
from trainoff.models import Mlp, Weights, flatten, unflatten

Floats = NDArray[np.float32]

PREDICT_ROWS = 1024  # so many rows and their hidden layers stay in the cache


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

    def differentiate(self, x: NDArray[Any], y: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> float:
        """Put the gradient of the loss on these rows into `gradient`; returns the loss."""
        count = len(rows)
        outputs = [layer[:count] for layer in self._outputs]
        take(x, rows, outputs[0])
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
