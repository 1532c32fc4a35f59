"""The reference: loss, gradient and training in float64 for every model, written to be read, not to be fast."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.batch_order import Order
from trainoff.data.dataset import Csr, Matrix
from trainoff.models.model import Array, Labels, Model, NamedWeights, Weights
from trainoff.models.network import log_softmax
from trainoff.models.optimizers import make_optimizer

CHUNK = 256  # rows at a time where a whole dataset goes through the model


def logits(model: Model, weights: Weights, x: Matrix) -> Array:
    """Return the scores before the softmax, a row per row of `x`; of a logistic regression 0 and the log-odds."""
    return model.scores(_as(model, weights, np.float64), _exact(x))


def loss_and_gradient(model: Model, weights: Weights, x: Matrix, y: Labels) -> tuple[float, NamedWeights]:
    """Return the mean loss with the L2 term, and its gradient in the order of the weights."""
    loss, gradient = model.gradient(_as(model, weights, np.float64), _exact(x), y)
    return loss, model.named(gradient[parameter.name] for parameter in model.parameters)


def trajectory(
    model: Model,
    weights: Weights,
    x: Matrix,
    y: Labels,
    order: Order,
    optimizer: str,
    momentum: float,
    rates: Sequence[float] | NDArray[np.float64],
    at: Collection[int] = (1, 20),
) -> dict[int, NamedWeights]:
    """Return the reference's weights after the steps `at`; a step past the end stands for the last one."""
    steps = {min(step, order.steps) for step in at}
    current = [part.astype(np.float64) for part in weights]
    rule = make_optimizer(optimizer, current, momentum)
    found: dict[int, NamedWeights] = {}
    for step, rows in order.batches():
        _, gradient = loss_and_gradient(model, current, x[rows], y[rows])
        rule.step(current, gradient, float(rates[step - 1]))
        if step in steps:
            found[step] = model.named(part.copy() for part in current)
        if step >= max(steps):
            break
    return found


def evaluate(model: Model, weights: Weights, x: Matrix, y: Labels) -> dict[str, float]:
    """Return the model's mean loss on `x` (without L2), its accuracy and, of two classes, its AUC.

    It computes in float32, because it is called for every snapshot.
    """
    single = _as(model, weights, np.float32)
    chunks = [model.scores(single, x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)]
    if not chunks:
        return {"loss": float("nan"), "accuracy": float("nan")}
    scores = np.concatenate(chunks)
    losses = -log_softmax(scores)[np.arange(len(y)), y]
    quality = {"loss": float(losses.mean(dtype=np.float64)), "accuracy": float(np.mean(scores.argmax(axis=1) == y))}
    if model.classes == 2:
        quality["auc"] = auc(scores[:, 1] - scores[:, 0], y)
    return quality


def auc(scores: Array, y: Labels) -> float:
    """Return the probability that a row of class 1 scores higher than one of class 0; equal scores count half."""
    ones = int(np.count_nonzero(y == 1))
    zeros = len(y) - ones
    if not ones or not zeros or not np.isfinite(scores).all():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # equal scores share the mean of their ranks
    return float((ranks[place][y == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _exact(x: Matrix) -> Any:
    return x if isinstance(x, Csr) else np.asarray(x, np.float64)


def _as(model: Model, weights: Weights, dtype: type[np.floating[Any]]) -> dict[str, Array]:
    return model.by_name(np.asarray(part, dtype) for part in weights)
