"""Logistic regression on sparse rows: a step touches only the weights of the features it has seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr
from trainoff.engines.contract import Job
from trainoff.models import Weights

PREDICT_ROWS = 10_000


class Logistic:
    """One weight per feature and a bias."""

    def __init__(self, job: Job) -> None:
        self.weights: Weights = [part.copy() for part in job.weights]
        x = job.data.x_train
        self._x = Csr(np.asarray(x.starts), np.asarray(x.columns), np.asarray(x.values), x.width)
        self._y = np.asarray(job.data.y_train)

    def put(self, weights: Weights) -> None:
        """Go on from these weights."""
        self.weights = [part.copy() for part in weights]

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Learn from these rows; returns the loss before."""
        x, y = self._x[rows], self._y[rows]
        owners = x.row_numbers()
        z = self._scores(x, owners)
        delta = (1 / (1 + np.exp(-z)) - y) / len(y)
        slopes = x.values * delta[owners].astype(np.float32)
        slopes *= np.float32(rate)
        np.subtract.at(self.weights[0], x.columns, slopes)
        self.weights[1] -= np.float32(rate * delta.sum())
        return float(np.logaddexp(0, np.where(y == 1, -z, z)).mean())

    def _scores(self, x: Csr, owners: NDArray[np.int64]) -> NDArray[np.float64]:
        products = x.values * self.weights[0][x.columns]
        sums = np.bincount(owners, products, minlength=len(x)).astype(np.float64, copy=False)
        return sums + float(self.weights[1][0])

    def labels(self, x: Csr) -> NDArray[np.int64]:
        found = np.empty(len(x), np.int64)
        for start in range(0, len(x), PREDICT_ROWS):
            part = x[start : start + PREDICT_ROWS].compact()
            found[start : start + len(part)] = self._scores(part, part.row_numbers()) > 0
        return found
