"""Temporary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    median: float
    low: float
    high: float
    level: float | None
    n: int


def interval(values: Sequence[float]) -> Interval:
    return Interval(statistics.median(values), min(values), max(values), None, len(values))
