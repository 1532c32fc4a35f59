"""A minimal loop in numpy: the gradient written out, and no large array allocated in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bare import MOMENTUM, RATE


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    x, y = np.asarray(x), np.asarray(y)
    w1, b1, w2, b2 = (part.copy() for part in weights)
    images, gradient_w1 = np.empty((batch, x.shape[1]), np.float32), np.empty_like(w1)
    hidden, below = np.empty((2, batch, len(b1)), np.float32)
    velocity = [np.zeros_like(part) for part in (w1, b1, w2, b2)]

    def loop(order: Any) -> None:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            labels = y[rows]
            np.take(x, rows, axis=0, out=images, mode="clip")
            np.matmul(images, w1, out=hidden)
            np.maximum(np.add(hidden, b1, out=hidden), 0, out=hidden)
            scores = hidden @ w2 + b2
            scores -= scores.max(axis=1, keepdims=True)
            delta = np.exp(scores)
            delta /= delta.sum(axis=1, keepdims=True)
            delta[np.arange(len(rows)), labels] -= 1
            delta /= len(rows)
            np.matmul(delta, w2.T, out=below)
            np.multiply(below, hidden > 0, out=below)
            np.matmul(images.T, below, out=gradient_w1)
            gradient = gradient_w1, below.sum(axis=0), hidden.T @ delta, delta.sum(axis=0)
            for part, v, g in zip((w1, b1, w2, b2), velocity, gradient, strict=True):
                v *= MOMENTUM
                v += g
                part -= np.multiply(v, RATE, out=g)

    return loop
