"""numpy, as one would write it: the gradient by hand, an update per matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bare import MOMENTUM, RATE


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    x, y = np.asarray(x), np.asarray(y)
    w1, b1, w2, b2 = (part.copy() for part in weights)
    velocity = [np.zeros_like(part) for part in (w1, b1, w2, b2)]

    def loop(order: Any) -> None:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            images, labels = x[rows], y[rows]
            hidden = np.maximum(images @ w1 + b1, 0)
            scores = hidden @ w2 + b2
            scores -= scores.max(axis=1, keepdims=True)
            delta = np.exp(scores)
            delta /= delta.sum(axis=1, keepdims=True)
            delta[np.arange(len(rows)), labels] -= 1
            delta /= len(rows)
            below = (delta @ w2.T) * (hidden > 0)
            gradient = images.T @ below, below.sum(axis=0), hidden.T @ delta, delta.sum(axis=0)
            for part, v, g in zip((w1, b1, w2, b2), velocity, gradient, strict=True):
                v *= MOMENTUM
                v += g
                part -= RATE * v

    return loop
