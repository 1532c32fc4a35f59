"""Weighing candidates: how likely each is the best, how likely about as good, and what choosing it would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analysis.advice.belief import Array

ALIKE = 0.1  # within so much of the best is about as good


@dataclass(frozen=True)
class Standing:
    """Where one candidate stands among all that were weighed."""

    best: float  # how likely it is the best of them
    near: float  # how likely it is within 10 % of the best
    regret: float  # how much more it takes than the best, on average: 0.05 is 5 %


def weigh(values: Sequence[Array]) -> list[Standing]:
    """Standings by what is to be small, seconds or dollars; a value for each draw of each candidate.

    The choice should be by the smallest regret: of several that are nearly alike none is likely to be the very best,
    and yet each of them is a good choice.
    """
    logs = np.log(np.stack(values))
    least = logs.min(axis=0)
    first = logs.argmin(axis=0)
    return [
        Standing(
            float(np.mean(first == place)),
            float(np.mean(own - least <= math.log1p(ALIKE))),
            math.expm1(float(np.mean(own - least))),
        )
        for place, own in enumerate(logs)
    ]


def ratio(of: Array, to: Array, level: float) -> tuple[float, float, float]:
    """How many times as much one candidate takes as another: from, middle, to."""
    low, middle, high = np.quantile(of / to, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return float(low), float(middle), float(high)
