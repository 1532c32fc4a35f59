"""Logistic regression on sparse rows, as a description that belongs to no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainoff.models.layers import Shape
from trainoff.models.network import Model


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
