"""What the workers of a synchronous training did in which time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def by_worker(every: NDArray[np.float64], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The seconds of each worker, by what it did, given those of every worker in every step, and their names.

    Of every step there are its seconds, those of agreeing, and those of waiting for rows where somebody feeds them.
    Nobody can agree faster than whoever comes last; the others wait for him.
    """
    agreeing = every[..., 1]
    parts = {
        "computing_s": (every[..., 0] - agreeing).sum(1),
        "communicating_s": np.full(len(every), agreeing.min(0).sum()),
    }
    if every.shape[-1] > 2:
        parts["feeding_s"] = every[..., 2].sum(1)
    return {what: dict(zip(names, map(float, values), strict=True)) for what, values in parts.items()}
