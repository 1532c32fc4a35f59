"""Logistic regression on sparse rows, as a description that belongs to no framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainoff.data.dataset import Csr
from trainoff.models.network import Array, Model, Shape


@dataclass(frozen=True)
class Logreg(Model):
    """One weight per feature and a bias, the logistic function, and the log-loss; two classes."""

    kind: ClassVar[str] = "logreg"

    features: int
    nonzeros: int = 39  # of a row, about; only for estimates
    l2: float = 0.0

    @property
    def classes(self) -> int:
        return 2

    @property
    def shapes(self) -> list[Shape]:
        return [(self.features,), (1,)]

    @property
    def products(self) -> int:
        return self.nonzeros


Labels = NDArray[np.integer[Any]]


def scores(weights: Sequence[Array], x: Csr) -> Array:
    """The log-odds of class 1, one per row."""
    rows = x.compact()
    products = rows.values * weights[0][rows.columns]
    sums = np.bincount(rows.row_numbers(), products, minlength=len(rows))
    odds: Array = (sums + weights[1][0]).astype(weights[0].dtype)
    return odds


def log_losses(z: Array, y: Labels) -> Array:
    """The log-loss of each row: log(1 + exp(-z)) of class 1, log(1 + exp(z)) of class 0."""
    return np.logaddexp(0, np.where(y == 1, -z, z))


def gradient(model: Logreg, weights: Sequence[Array], x: Csr, y: Labels) -> tuple[float, list[Array]]:
    """The mean log-loss with the L2 term, and its gradient: of the weights, of the bias."""
    rows = x.compact()
    z = scores(weights, rows)
    loss = log_losses(z, y).mean() + model.l2 / 2 * np.sum(weights[0] ** 2)
    delta = (1 / (1 + np.exp(-z)) - y) / len(y)
    slope = np.bincount(rows.columns, rows.values * delta[rows.row_numbers()], minlength=model.features)
    return float(loss), [slope + model.l2 * weights[0], np.array([delta.sum()])]


def auc(z: Array, y: Labels) -> float:
    """The chance that a row of class 1 scores higher than one of class 0; equal scores count half."""
    ones = int(np.count_nonzero(y == 1))
    zeros = len(y) - ones
    if not ones or not zeros or not np.isfinite(z).all():
        return float("nan")
    _, place, counts = np.unique(z, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # equal scores share the mean of their ranks
    return float((ranks[place][y == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))
