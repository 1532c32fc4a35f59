"""Which weights a round has changed, and what to: all that must travel where few of many change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """Some places of a vector, and their new values."""

    places: NDArray[np.int32]
    values: Floats

    @staticmethod
    def between(before: Floats, after: Floats) -> Change:
        places = np.flatnonzero(before != after).astype(np.int32)
        return Change(places, after[places])

    def apply(self, weights: Floats) -> None:
        """Make the change in a vector."""
        weights[self.places] = self.values

    def add_to(self, mean: Floats, before: Floats, part: np.float32) -> None:
        """Add a part of the change from `before` to a mean."""
        mean[self.places] += part * (self.values - before[self.places])
