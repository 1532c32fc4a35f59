"""Metrics: what tells how good a trained model is, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One figure of quality."""

    name: str
    higher: bool = True  # whether more is better

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as the target; what is no number never is."""
        return value >= target if self.higher else value <= target

    def badness(self, value: float) -> float:
        """A number to sort by: the better, the smaller."""
        return -value if self.higher else value


METRICS = {
    metric.name: metric
    for metric in (Metric("accuracy"), Metric("error", higher=False), Metric("auc"), Metric("log-loss", higher=False))
}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Every metric that a row of a learning curve gives."""
    found = {"accuracy": row["accuracy"], "error": error_of(row["accuracy"]), "log-loss": row["loss"]}
    return found | ({"auc": row["auc"]} if "auc" in row else {})


def error_of(accuracy: float) -> float:
    """The share that is wrong. Rounded, because 1 - 0.7 is a little more than 0.3 and would miss that target."""
    return round(1 - accuracy, 12)
