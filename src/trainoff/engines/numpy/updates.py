"""The optimisers in float32 and in place; `trainoff.models.optimisers` says the same in float64."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.models import BETA1, BETA2, EPSILON

Floats = NDArray[np.float32]


class Optimizer(Protocol):
    """What turns a gradient into a step."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        """Move the weights in place by one step. May overwrite the gradient."""


class Sgd:
    """Plain gradient descent."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        gradient *= rate
        weights -= gradient


class Momentum:
    """Gradient descent with a velocity."""

    def __init__(self, size: int, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = np.zeros(size, np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._velocity *= self._momentum
        self._velocity += gradient
        np.multiply(self._velocity, rate, out=gradient)
        weights -= gradient


class Adam:
    """Adam, with both bias corrections drawn out of the vectors and into the rate and epsilon."""

    def __init__(self, size: int) -> None:
        self._steps = 0
        self._mean, self._square, self._scratch = np.zeros((3, size), np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._steps += 1
        unbias = sqrt(1 - BETA2**self._steps)
        scratch = np.multiply(gradient, 1 - BETA1, out=self._scratch)
        self._mean *= BETA1
        self._mean += scratch
        np.square(gradient, out=gradient)
        gradient *= 1 - BETA2
        self._square *= BETA2
        self._square += gradient
        np.sqrt(self._square, out=scratch)
        scratch += EPSILON * unbias
        np.divide(self._mean, scratch, out=scratch)
        scratch *= rate * unbias / (1 - BETA1**self._steps)
        weights -= scratch


def make_optimizer(params: Mapping[str, Any], size: int) -> Optimizer:
    """The optimiser that the trial names, for so many weights."""
    if params["optimizer"] == "adam":
        return Adam(size)
    if params["optimizer"] == "momentum":
        return Momentum(size, float(params["momentum"]))
    return Sgd()
