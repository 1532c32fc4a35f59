"""The reference: forward, loss, gradient and training in float64, written to be read, not to be fast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.order import Order
from trainoff.models.mlp import Mlp
from trainoff.models.optimisers import make_optimizer
from trainoff.models.weights import Array, Weights

Labels = NDArray[np.integer[Any]]

CHUNK = 1024  # rows at a time where a whole dataset goes through the network


def logits(model: Mlp, weights: Sequence[Array], x: Array) -> Array:
    """The scores of each class before the softmax, one row per row of `x`."""
    return _layers(model, _as(weights, np.float64), np.asarray(x, np.float64))[-1]


def loss_and_gradient(model: Mlp, weights: Sequence[Array], x: Array, y: Labels) -> tuple[float, Weights]:
    """The mean cross-entropy with the L2 term, and its gradient in the order of the weights."""
    exact = _as(weights, np.float64)
    layers = _layers(model, exact, np.asarray(x, np.float64))
    log_probabilities = _log_softmax(layers[-1])
    rows = np.arange(len(y))
    loss = -log_probabilities[rows, y].mean()

    delta = np.exp(log_probabilities)
    delta[rows, y] -= 1
    delta /= len(y)
    gradient: Weights = []
    for layer in reversed(range(len(layers) - 1)):
        matrix = exact[2 * layer]
        loss += model.l2 / 2 * np.sum(matrix**2)
        gradient[:0] = [layers[layer].T @ delta + model.l2 * matrix, delta.sum(axis=0)]
        if layer:
            delta = delta @ matrix.T * _slope(model.activation, layers[layer])
    return float(loss), gradient


def trajectory(
    model: Mlp,
    weights: Sequence[Array],
    x: Array,
    y: Labels,
    order: Order,
    optimizer: str,
    momentum: float,
    rates: NDArray[np.float64],
    at: Collection[int] = (1, 20),
) -> dict[int, Weights]:
    """The reference's weights after the steps `at`; a step past the end stands for the last one."""
    wanted = {min(step, order.steps) for step in at}
    current: Weights = [part.astype(np.float64) for part in weights]
    rule = make_optimizer(optimizer, current, momentum)
    seen: dict[int, Weights] = {}
    for step, rows in order.batches():
        _, gradient = loss_and_gradient(model, current, x[rows], y[rows])
        rule.step(current, gradient, float(rates[step - 1]))
        if step in wanted:
            seen[step] = [part.copy() for part in current]
        if step >= max(wanted):
            break
    return seen


def labels(model: Mlp, weights: Sequence[Array], x: Array) -> NDArray[np.int64]:
    """The class of each row of `x`, by the reference."""
    exact = _as(weights, np.float64)
    found = [logits(model, exact, x[part]).argmax(axis=1) for part in _chunks(len(x))]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def evaluate(model: Mlp, weights: Sequence[Array], x: Array, y: Labels) -> tuple[float, float]:
    """The mean cross-entropy (without L2) and the accuracy on `x`, in float32 because it is often asked."""
    if len(x) == 0:
        return float("nan"), float("nan")
    single = _as(weights, np.float32)
    loss, right = 0.0, 0
    for part in _chunks(len(x)):
        scores = _layers(model, single, np.asarray(x[part], np.float32))[-1]
        truth = y[part]
        log_probabilities = _log_softmax(scores)
        loss -= float(log_probabilities[np.arange(len(truth)), truth].sum(dtype=np.float64))
        right += int(np.count_nonzero(scores.argmax(axis=1) == truth))
    return loss / len(x), right / len(x)


def _layers(model: Mlp, weights: Sequence[Array], x: Array) -> list[Array]:
    """The input, the output of each hidden layer, and the logits; in the type of the weights."""
    layers = [x]
    last = len(weights) - 2
    for index in range(0, len(weights), 2):
        sums = layers[-1] @ weights[index]
        sums += weights[index + 1]
        layers.append(sums if index == last else _activate(model.activation, sums))
    return layers


def _activate(name: str, sums: Array) -> Array:
    """The activation, in place. The sigmoid by way of tanh, which cannot overflow."""
    if name == "relu":
        return np.maximum(sums, 0, out=sums)
    if name == "tanh":
        return np.tanh(sums, out=sums)
    sums /= 2
    np.tanh(sums, out=sums)
    sums += 1
    sums /= 2
    return sums


def _slope(name: str, outputs: Array) -> Array:
    """The derivative of the activation, told from what it put out."""
    if name == "relu":
        return (outputs > 0).astype(outputs.dtype)
    if name == "tanh":
        return 1 - outputs**2
    return outputs * (1 - outputs)


def _log_softmax(scores: Array) -> Array:
    shifted: Array = scores - scores.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _as(weights: Sequence[Array], dtype: type[np.floating[Any]]) -> Weights:
    return [np.asarray(part, dtype) for part in weights]


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))
