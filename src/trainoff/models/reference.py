"""The reference: loss, gradient and training in float64 for every model, written to be read, not to be fast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trainoff.data.order import Order
from trainoff.data.sparse import Csr, Matrix
from trainoff.models import layered, logistic
from trainoff.models.logreg import Logreg
from trainoff.models.network import Model, Network
from trainoff.models.optimizers import make_optimizer
from trainoff.models.weights import Array, Weights

Labels = NDArray[np.integer[Any]]

CHUNK = 256  # rows at a time where a whole dataset goes through the model


def logits(model: Model, weights: Sequence[Array], x: Matrix) -> Array:
    """The scores before the softmax, a row per row of `x`; of a logistic regression the log-odds against nought."""
    return _scores(model, _as(weights, np.float64), _exact(x))


def loss_and_gradient(model: Model, weights: Sequence[Array], x: Matrix, y: Labels) -> tuple[float, Weights]:
    """The mean loss with the L2 term, and its gradient in the order of the weights."""
    exact = _as(weights, np.float64)
    if isinstance(model, Logreg):
        return logistic.gradient(model, exact, cast(Csr, x), y)
    return layered.gradient(cast(Network, model), exact, cast(Array, _exact(x)), y)


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
    losses = -layered.log_softmax(found)[np.arange(len(y)), y]
    quality = {"loss": float(losses.mean(dtype=np.float64)), "accuracy": float(np.mean(found.argmax(axis=1) == y))}
    if model.classes == 2:
        quality["auc"] = logistic.auc(found[:, 1] - found[:, 0], y)
    return quality


def _scores(model: Model, weights: Sequence[Array], x: Matrix) -> Array:
    """Scores in the type of the weights."""
    if isinstance(model, Logreg):
        odds = logistic.scores(weights, cast(Csr, x))
        return np.stack([np.zeros_like(odds), odds], axis=1)
    return layered.outputs(cast(Network, model), weights, cast(Array, x))[-1]


def _exact(x: Matrix) -> Any:
    return x if isinstance(x, Csr) else np.asarray(x, np.float64)


def _as(weights: Sequence[Array], dtype: type[np.floating[Any]]) -> Weights:
    return [np.asarray(part, dtype) for part in weights]


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))
