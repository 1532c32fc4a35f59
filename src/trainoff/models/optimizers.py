"""The optimisers in float64 and in torch's forms, against which every engine is tested; learning-rate schedules."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from trainoff.models.model import Weights

OPTIMIZERS = ("sgd", "momentum", "adam")

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as published


class Optimizer(Protocol):
    """The rule that turns a gradient into a step."""

    def step(self, weights: Weights, gradient: Weights, rate: float) -> None:
        """Move the weights, in place, by one step."""


class Sgd:
    """Plain gradient descent: w -= rate g."""

    def step(self, weights: Weights, gradient: Weights, rate: float) -> None:
        for w, g in zip(weights, gradient, strict=True):
            w -= rate * g


class Momentum:
    """Gradient descent with a velocity: v = momentum v + g, then w -= rate v."""

    def __init__(self, weights: Weights, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = [np.zeros_like(w) for w in weights]

    def step(self, weights: Weights, gradient: Weights, rate: float) -> None:
        for w, g, v in zip(weights, gradient, self._velocity, strict=True):
            v *= self._momentum
            v += g
            w -= rate * v


class Adam:
    """Adam with bias correction and epsilon outside the root."""

    def __init__(self, weights: Weights) -> None:
        self._steps = 0
        self._mean = [np.zeros_like(w) for w in weights]
        self._square = [np.zeros_like(w) for w in weights]

    def step(self, weights: Weights, gradient: Weights, rate: float) -> None:
        self._steps += 1
        unbias_mean, unbias_square = 1 - BETA1**self._steps, 1 - BETA2**self._steps
        for w, g, m, s in zip(weights, gradient, self._mean, self._square, strict=True):
            m += (1 - BETA1) * (g - m)
            s += (1 - BETA2) * (g * g - s)
            w -= rate / unbias_mean * m / (np.sqrt(s) / sqrt(unbias_square) + EPSILON)


def make_optimizer(name: str, weights: Weights, momentum: float = 0.0) -> Optimizer:
    """Return the optimiser of that name for these weights; only `momentum` uses the momentum."""
    if name == "sgd":
        return Sgd()
    if name == "momentum":
        return Momentum(weights, momentum)
    if name == "adam":
        return Adam(weights)
    raise TrainoffError(f"`{name}` is not an optimizer; use one of {', '.join(OPTIMIZERS)}")


SCHEDULES = ("constant", "one-cycle")

RISE = 0.25  # the share of the training in which one-cycle climbs to the learning rate
START = 1 / 25  # one-cycle's first rate, as a share of the learning rate
END = 1 / 1000  # and its last


def rates(schedule: str, learning_rate: float, steps: int) -> NDArray[np.float64]:
    """Return the learning rate of each step; `rates(...)[step - 1]` belongs to `step`."""
    if schedule == "constant":
        return np.full(steps, float(learning_rate))
    if schedule == "one-cycle":
        return learning_rate * _one_cycle(steps)
    raise TrainoffError(f"`{schedule}` is not a schedule; use one of {', '.join(SCHEDULES)}")


def _one_cycle(steps: int) -> NDArray[np.float64]:
    """Return a straight rise, then half a cosine down, as shares of the learning rate.

    Each step takes the rate at the middle of its share of the training, so that one or two steps need
    no special rule.
    """
    done = (np.arange(steps) + 0.5) / steps
    rise = START + (1 - START) * done / RISE
    fall = END + (1 - END) * (1 + np.cos(np.pi * (done - RISE) / (1 - RISE))) / 2
    return np.where(done < RISE, rise, fall)
