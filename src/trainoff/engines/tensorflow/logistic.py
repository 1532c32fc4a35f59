"""Logistic regression on sparse rows in TensorFlow; a step touches only the weights of the batch's features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr
from trainoff.engines.contract import Job

Tensor = Any  # TensorFlow has no types that mypy could use


class Logistic:
    """One weight per feature and a bias."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._x, self._y = tf, job.data.x_train, job.data.y_train
        self.weights = self.state = [tf.Variable(part) for part in job.weights]
        # Batches differ in their non-zeros, so the lengths stay open and nothing is compiled anew.
        ints, floats = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])
        sparse = [ints, floats, tf.TensorSpec([None], tf.int64)]
        self._compiled = tf.function(self._step, [*sparse, floats, tf.TensorSpec([2])], autograph=False)
        self._compiled_scores = tf.function(self._scores, input_signature=[*sparse, tf.TensorSpec([], tf.int32)])

    def learn(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make one step on these rows; returns the loss before it."""
        return self._learn(rows, rate, 1.0)

    def _learn(self, rows: NDArray[np.int64], rate: float, part: float) -> float:
        """Learn from rows that are a part of a batch."""
        return float(self._compiled(*parts(self._x[rows]), self._y[rows].astype("float32"), [rate, part]))

    def labels(self, x: Csr) -> NDArray[np.int64]:
        """The class of each row: 1 where the odds are better than even."""
        odds: NDArray[np.float32] = self._compiled_scores(*parts(x.compact()), len(x)).numpy()
        return (odds > 0).astype("int64")

    def _scores(self, columns: Tensor, values: Tensor, owners: Tensor, rows: Tensor) -> Tensor:
        """The log-odds of each row; those of a row without non-zeros are the bias."""
        products = self._tf.gather(self.weights[0], columns) * values
        return self._tf.math.unsorted_segment_sum(products, owners, rows) + self.weights[1]

    def _step(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        """Make a step; `numbers` are the rate, and which part of the batch these rows are."""
        weights, bias = self.weights
        loss, columns, changes, change = self._changes(columns, values, owners, y, numbers)
        self._tf.raw_ops.ResourceScatterSub(resource=weights.handle, indices=columns, updates=changes)
        bias.assign_sub(change)
        return loss

    def _changes(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> list[Tensor]:
        """The loss, the features whose weights change, by how much each, and by how much the bias."""
        tf = self._tf
        z = self._scores(columns, values, owners, tf.size(y))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        moves = (tf.sigmoid(z) - y) * (numbers[0] * numbers[1] / tf.cast(tf.size(y), tf.float32))
        return [loss * numbers[1], columns, tf.gather(moves, owners) * values, tf.reduce_sum(moves, keepdims=True)]


def parts(x: Csr) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The non-zeros' columns and values, and the row each belongs to."""
    return x.columns, x.values, x.row_numbers()
