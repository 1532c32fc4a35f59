"""A minimal loop in scikit-learn: partial_fit per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.neural_network import MLPClassifier

from bare import MOMENTUM, RATE


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    x, y = np.asarray(x), np.asarray(y)
    classifier = MLPClassifier(
        model.sizes[1:-1],
        solver="sgd",
        alpha=0,
        batch_size=batch,
        learning_rate_init=RATE,
        momentum=MOMENTUM,
        nesterovs_momentum=False,
        shuffle=False,
        random_state=np.random.RandomState(0),
    )
    classifier.partial_fit(x[:batch], y[:batch], classes=np.arange(10))

    def loop(order: Any) -> None:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            classifier.partial_fit(x[rows], y[rows])

    return loop
