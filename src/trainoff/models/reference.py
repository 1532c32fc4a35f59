"""The reference: loss, gradient and training in float64 for every model, written to be read, not to be fast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trainoff.data.batch_order import Order
from trainoff.data.dataset import Csr, Matrix
from trainoff.models import logreg
from trainoff.models.logreg import Logreg
from trainoff.models.network import Array, ConvLayer, DenseLayer, Layer, Model, Network, PoolLayer, Weights
from trainoff.models.optimizers import make_optimizer

Labels = NDArray[np.integer[Any]]

CHUNK = 256  # rows at a time where a whole dataset goes through the model


def logits(model: Model, weights: Sequence[Array], x: Matrix) -> Array:
    """The scores before the softmax, a row per row of `x`; of a logistic regression the log-odds against nought."""
    return _scores(model, _as(weights, np.float64), _exact(x))


def loss_and_gradient(model: Model, weights: Sequence[Array], x: Matrix, y: Labels) -> tuple[float, Weights]:
    """The mean loss with the L2 term, and its gradient in the order of the weights."""
    exact = _as(weights, np.float64)
    if isinstance(model, Logreg):
        return logreg.gradient(model, exact, cast(Csr, x), y)
    return gradient(cast(Network, model), exact, cast(Array, _exact(x)), y)


def trajectory(
    model: Model,
    weights: Sequence[Array],
    x: Matrix,
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


def labels(model: Model, weights: Sequence[Array], x: Matrix) -> NDArray[np.int64]:
    """The class of each row of `x`, by the reference."""
    exact = _as(weights, np.float64)
    found = [_scores(model, exact, _exact(x[part])).argmax(axis=1) for part in _chunks(len(x))]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def evaluate(model: Model, weights: Sequence[Array], x: Matrix, y: Labels) -> dict[str, float]:
    """How good the model is on `x`: mean loss (without L2), accuracy and, of two classes, AUC.

    In float32 because it is often asked.
    """
    single = _as(weights, np.float32)
    scores = [_scores(model, single, x[part]) for part in _chunks(len(x))]
    if not scores:
        return {"loss": float("nan"), "accuracy": float("nan")}
    found = np.concatenate(scores)
    losses = -log_softmax(found)[np.arange(len(y)), y]
    quality = {"loss": float(losses.mean(dtype=np.float64)), "accuracy": float(np.mean(found.argmax(axis=1) == y))}
    if model.classes == 2:
        quality["auc"] = logreg.auc(found[:, 1] - found[:, 0], y)
    return quality


def _scores(model: Model, weights: Sequence[Array], x: Matrix) -> Array:
    """Scores in the type of the weights."""
    if isinstance(model, Logreg):
        odds = logreg.scores(weights, cast(Csr, x))
        return np.stack([np.zeros_like(odds), odds], axis=1)
    return outputs(cast(Network, model), weights, cast(Array, x))[-1]


def _exact(x: Matrix) -> Any:
    return x if isinstance(x, Csr) else np.asarray(x, np.float64)


def _as(weights: Sequence[Array], dtype: type[np.floating[Any]]) -> Weights:
    return [np.asarray(part, dtype) for part in weights]


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))


def outputs(network: Network, weights: Sequence[Array], x: Array) -> list[Array]:
    """The input, then what each layer puts out; the last are the scores before the softmax."""
    found, rest = [x], list(weights)
    for layer in network.layers:
        own = [rest.pop(0) for _ in layer.shapes]
        found.append(_forward(layer, own, found[-1]))
    return found


def gradient(network: Network, weights: Sequence[Array], x: Array, y: Labels) -> tuple[float, list[Array]]:
    """The mean cross-entropy with the L2 term, and its gradient in the order of the weights."""
    found = outputs(network, weights, x)
    log_probabilities = log_softmax(found[-1])
    rows = np.arange(len(y))
    loss = -log_probabilities[rows, y].mean()
    delta = np.exp(log_probabilities)
    delta[rows, y] -= 1
    delta /= len(y)
    result: list[Array] = []
    rest = list(weights)
    for index, layer in reversed(list(enumerate(network.layers))):
        own = [rest.pop() for _ in layer.shapes][::-1]
        below, above = found[index], found[index + 1]
        delta, slopes = _backward(layer, own, below, above, delta, first=index == 0)
        if own:
            loss += network.l2 / 2 * np.sum(own[0] ** 2)
            slopes[0] += network.l2 * own[0]
        result[:0] = slopes
    return float(loss), result


def log_softmax(scores: Array) -> Array:
    shifted: Array = scores - scores.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _forward(layer: Layer, weights: list[Array], x: Array) -> Array:
    if isinstance(layer, PoolLayer):
        height, width, _ = layer.picture
        rows = np.maximum(x[:, 0 : 2 * height : 2], x[:, 1 : 2 * height : 2])
        return np.maximum(rows[:, :, 0 : 2 * width : 2], rows[:, :, 1 : 2 * width : 2])
    if isinstance(layer, ConvLayer):
        sums = _patches(layer, x) @ weights[0].reshape(-1, layer.outputs)
        sums = sums.reshape(len(x), *layer.picture)
    else:
        sums = x.reshape(len(x), -1) @ weights[0]
    sums += weights[1]
    return sums if layer.activation is None else _activate(layer.activation, sums)


def _backward(
    layer: Layer, weights: list[Array], below: Array, above: Array, delta: Array, first: bool
) -> tuple[Array, list[Array]]:
    """The loss by what the layer was given (not needed for the first) and by its weights."""
    if isinstance(layer, PoolLayer):
        return _unpool(layer, below, above, delta), []
    delta = delta.reshape(above.shape)
    if layer.activation is not None:
        delta = delta * _slope(layer.activation, above)
    if isinstance(layer, DenseLayer):
        flat = below.reshape(len(below), -1)
        return (delta if first else delta @ weights[0].T), [flat.T @ delta, delta.sum(axis=0)]
    columns = delta.reshape(-1, layer.outputs)
    slope = (_patches(layer, below).T @ columns).reshape(layer.shapes[0])
    return (delta if first else _unpatch(layer, weights[0], delta)), [slope, columns.sum(axis=0)]


def _patches(layer: ConvLayer, x: Array) -> Array:
    """What lies under the kernel at each of its places, as the rows of a matrix."""
    pictures = x.reshape(len(x), layer.height, layer.width, layer.inputs)
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (layer.kernel, layer.kernel), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, layer.fans[0])


def _unpatch(layer: ConvLayer, kernel: Array, delta: Array) -> Array:
    """Give each pixel what every place of the kernel that covered it owes to it."""
    result = np.zeros((len(delta), layer.height, layer.width, layer.inputs), delta.dtype)
    height, width, _ = layer.picture
    for row in range(layer.kernel):
        for column in range(layer.kernel):
            result[:, row : row + height, column : column + width] += delta @ kernel[row, column].T
    return result


def _blocks(layer: PoolLayer, x: Array) -> Array:
    """The pictures as [rows, height / 2, 2, width / 2, 2, channels]."""
    height, width, channels = layer.picture
    return x[:, : 2 * height, : 2 * width].reshape(len(x), height, 2, width, 2, channels)


def _unpool(layer: PoolLayer, below: Array, above: Array, delta: Array) -> Array:
    """Each output's slope goes to the pixel it was taken from: the first, where several are the largest."""
    height, width, channels = layer.picture
    blocks = _blocks(layer, below).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 4)
    slopes = np.zeros_like(blocks)
    slopes[np.arange(len(blocks)), blocks.argmax(axis=1)] = delta.reshape(-1)
    spread = slopes.reshape(len(below), height, width, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    result = np.zeros_like(below)
    result[:, : 2 * height, : 2 * width] = spread.reshape(len(below), 2 * height, 2 * width, channels)
    return result


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


def _slope(name: str, above: Array) -> Array:
    """The derivative of the activation, told from what it put out."""
    if name == "relu":
        return (above > 0).astype(above.dtype)
    if name == "tanh":
        return 1 - above**2
    return above * (1 - above)
