"""Logistic regression on sparse rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from trainoff.data.dataset import Csr
from trainoff.models.model import Array, DataShape, Labels, Model, Parameter
from trainoff.models.optimizers import SCHEDULES

OPERATIONS = 1000.0  # that take as long as one non-zero, whose weight a core waits for memory to bring


@dataclass(frozen=True)
class Logreg(Model):
    """One weight per feature and a bias, the logistic function, and the log-loss; two classes."""

    kind: ClassVar[str] = "logreg"
    defaults: ClassVar[Mapping[str, Any]] = {"optimizer": "sgd", "schedule": "constant"}
    optimizers = ("sgd",)  # the only one that leaves weights alone that no row touches
    sparse = True
    example_data = "clicks:rows=1000,bits=10"

    features: int
    nonzeros: int = 39  # of a row, about; only for estimates
    l2: float = 0.0

    @classmethod
    def build(cls, params: Mapping[str, Any], data: DataShape) -> Self:
        return cls(data.features, data.nonzeros or 1, params["l2"])

    @classmethod
    def misfit(cls, data: DataShape) -> str | None:
        if data.classes == 2:
            return None
        return f"{data.name} has {data.classes} classes; logistic regression tells two apart"

    @classmethod
    def contract_cases(cls, thorough: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for schedule in SCHEDULES:
            yield f"sgd, {schedule}", {"schedule": schedule}

    @property
    def classes(self) -> int:
        return 2

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return Parameter("weight", (self.features,), True), Parameter("bias", (1,), False)

    @property
    def operations(self) -> float:
        return OPERATIONS * self.nonzeros

    def scores(self, weights: Mapping[str, Array], x: Csr) -> Array:
        odds = log_odds(weights, x)
        return np.stack([np.zeros_like(odds), odds], axis=1)

    def gradient(self, weights: Mapping[str, Array], x: Csr, y: Labels) -> tuple[float, dict[str, Array]]:
        rows, weight = x.compact(), weights["weight"]
        z = log_odds(weights, rows)
        log_losses = np.logaddexp(0, np.where(y == 1, -z, z))  # log(1 + exp(-z)) of class 1, log(1 + exp(z)) of class 0
        loss = log_losses.mean() + self.l2 / 2 * np.sum(weight**2)
        delta = (1 / (1 + np.exp(-z)) - y) / len(y)
        sums = np.bincount(rows.columns, rows.values * delta[rows.row_numbers()], minlength=self.features)
        return float(loss), {"weight": sums + self.l2 * weight, "bias": np.array([delta.sum()])}


def log_odds(weights: Mapping[str, Array], x: Csr) -> Array:
    """Return the log-odds of class 1, one per row."""
    rows, weight = x.compact(), weights["weight"]
    products = rows.values * weight[rows.columns]
    sums = np.bincount(rows.row_numbers(), products, minlength=len(rows))
    odds: Array = (sums + weights["bias"][0]).astype(weight.dtype)
    return odds
