"""The hidden model of the click log made here: who clicks, with which chance, and the best that can be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainoff.data.fields import NUMBERS, Block, Fields

CLICKS = 0.25  # the share of rows with a click
BEST_ERROR = 0.165  # of who knows the hidden model
_FREQUENT = 500  # so many categories of each field have a say, the most frequent ones
_OF_NUMBERS = 2.0  # how much more a number may weigh than a category
_HALVINGS = 40

Chances = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A logistic regression on the columns of a row; column `width` stands for nothing and weighs nothing."""

    weights: NDArray[np.float32]
    bias: float

    def scores(self, block: Block) -> Chances:
        """The log-odds of a click, summed field by field, in an order that is the same everywhere."""
        total = np.full(len(block.columns), self.bias)
        for field in range(block.columns.shape[1]):
            weights = self.weights[block.columns[:, field]] * block.kept[:, field]
            total += weights.astype(np.float64) * block.values[:, field]
        return total


def chances(scores: Chances) -> Chances:
    """The chance of a click."""
    result: Chances = 1 / (1 + np.exp(-scores))
    return result


def draw(fields: Fields, seed: int, rows: Block) -> Model:
    """A model drawn by the seed, made as strong as BEST_ERROR asks, for a share of CLICKS, on the rows given."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(fields.width + 1)
    numbers = len(NUMBERS)
    weights[:numbers] = _OF_NUMBERS * rng.uniform(0.5, 1, numbers) * np.where(rng.random(numbers) < 0.5, -1, 1)
    for columns in fields.columns:
        frequent = columns[:-1][:_FREQUENT]
        np.add.at(weights, frequent, rng.uniform(-1, 1, len(frequent)))
    weights = np.rint(weights * 4096) / 4096
    plain = Model(weights.astype(np.float32), 0.0).scores(rows)
    strength = _halved(0, 16, lambda by: _error(by * plain) < BEST_ERROR)
    strength = round(strength * 4096) / 4096  # a few digits, on which all machines agree
    bias = round(_bias(strength * plain) * 4096) / 4096
    return Model((weights * strength).astype(np.float32), bias)


def _halved(low: float, high: float, too_high: Callable[[float], bool]) -> float:
    """Where between two numbers a condition begins to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_high(middle) else (middle, high)
    return low


def _bias(scores: Chances) -> float:
    return _halved(-50, 50, lambda bias: float(chances(scores + bias).mean()) > CLICKS)


def _error(scores: Chances) -> float:
    p = chances(scores + _bias(scores))
    return float(np.minimum(p, 1 - p).mean())


def best(p: Chances) -> dict[str, float]:
    """What the hidden model itself is expected to reach on rows with these chances of a click."""
    error = np.minimum(p, 1 - p).mean()
    log_loss = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    clicks = np.sort(p)
    others = 1 - clicks
    below = np.cumsum(others) - others / 2  # how many without a click score lower; a row counts half for itself
    auc = (clicks * below).sum() / (clicks.sum() * others.sum())
    named = {"best_error": error, "best_log_loss": log_loss, "best_auc": auc}
    return {name: round(float(value), 6) for name, value in named.items()}
