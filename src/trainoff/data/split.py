"""The hold-out: which fifth of a dataset is kept for testing, where it has no test part of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.study.seeds import derive


def hold_out(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training and rows for testing: of every class about a fifth, drawn by a fixed seed.

    The rows are shuffled, sorted by class, and every fifth is held out. Both parts stay shuffled,
    so that the first rows of a file that was sorted by class hold all classes.
    """
    shuffled = np.random.default_rng(derive("hold-out")).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    held = np.zeros(len(labels), bool)
    held[by_class[::5]] = True
    return shuffled[~held[shuffled]], shuffled[held[shuffled]]
