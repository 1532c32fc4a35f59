"""Logistic regression on sparse rows in torch: a step touches only the weights of the batch's features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainoff.engines.contract import Job
from trainoff.engines.torch.rows import SparseBatch
from trainoff.models import Weights

Rate = Any  # a float, or a vector of one number where the rate lies on a GPU


class Logistic:
    """One weight per feature and a bias. The gradient of one layer is short enough to be written down."""

    def __init__(self, job: Job, device: str) -> None:
        self.state = [torch.tensor(part, device=device) for part in job.weights]  # all that a step changes
        self._weights, self._bias = self.state

    def learn(self, batch: SparseBatch, rate: Rate) -> Tensor:
        """Make one step; returns the loss before it."""
        z = self._scores(batch)
        y = batch.y.to(z.dtype)
        loss = F.binary_cross_entropy_with_logits(z, y)
        moves = F.pad(y.sub_(z.sigmoid_()).mul_(rate).div_(len(y)), (0, 1))  # what only fills up moves nothing
        self._weights.scatter_add_(0, batch.columns, moves.index_select(0, batch.owners).mul_(batch.values))
        self._bias.add_(moves.sum())
        return loss

    def labels(self, batch: SparseBatch) -> Tensor:
        """The class of each row: 1 where the odds are better than even."""
        return self._scores(batch) > 0

    def weights(self) -> Weights:
        """The weights and the bias."""
        return [part.cpu().numpy() for part in self.state]

    def _scores(self, batch: SparseBatch) -> Tensor:
        """The log-odds of each row."""
        products = self._weights.index_select(0, batch.columns).mul_(batch.values)
        sums = products.new_zeros(len(batch.y) + 1).scatter_add_(0, batch.owners, products)
        return sums[:-1].add_(self._bias)
