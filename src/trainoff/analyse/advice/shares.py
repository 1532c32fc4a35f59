"""What share of a training it takes to the target, and how that goes with rows and nodes.

The time of a whole training goes with rows and nodes by a law that can be fitted; the time to a target does not, since
with more rows a smaller share of the training is enough. That share hardly depends on the engine, so all engines tell
together how it goes with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.advice.belief import DRAWS, Array
from trainoff.analysis.scaling import Curve, rows_of
from trainoff.records import Record

STEADY = 0.0625  # how little the share is thought to go with the nodes: as a regression's weight on none
FIRST_GUESS, WEIGHT = 0.02, 2  # how far shares lie from the model, and how many runs that is worth
BETWEEN, BEYOND = 0.03, 0.2  # doubt of a number of rows that was not run, and for each factor e beyond those that were
ROUNDS = 30  # of taking means by turns, until they agree


@dataclass(frozen=True)
class Shares:
    """Logarithms of shares as a sum: of the curve, of its nodes, and of the rows, the same for all curves."""

    curves: Array
    slopes: Array  # with the logarithm of the nodes
    rows: Array  # logarithms, in order
    steps: Array  # what each number of rows adds
    noise: float
    common: Array  # a draw of the doubt about the rows, the same for all that is predicted
    own: Array  # draws of what sets each curve apart

    def drawn(self, curve: int, nodes: int, rows: float) -> Array:
        """The share at so many nodes and rows, in each draw; never more than all of the training."""
        at = math.log(rows)
        middle = self.curves[curve] + self.slopes[curve] * math.log(nodes) + _along(at, self.rows, self.steps)
        known = bool(np.any(np.isclose(at, self.rows)))
        far = max(self.rows[0] - at, at - self.rows[-1], 0.0)
        doubt = 0.0 if known else BETWEEN + BEYOND * far
        return np.asarray(np.exp(np.minimum(middle + doubt * self.common + self.noise * self.own[curve], 0.0)))


def shares(curves: Sequence[Curve], random: np.random.Generator) -> Shares:
    """How the share goes with rows and nodes, by the runs that got there."""
    points = [
        (place, math.log(record.workers or 1), math.log(rows_of(record)), _log_share(curve, record))
        for place, curve in enumerate(curves)
        for record in curve.records
    ]
    which = np.array([point[0] for point in points])
    nodes, rows, logs = (np.array([point[column] for point in points]) for column in (1, 2, 3))
    slopes = np.array([_slope(nodes, rows, logs, which == place) for place in range(len(curves))])
    rest = logs - slopes[which] * nodes
    known, row = np.unique(rows, return_inverse=True)
    own, steps = np.zeros(len(curves)), np.zeros(len(known))
    for _ in range(ROUNDS):
        own = np.bincount(which, rest - steps[row], len(curves)) / np.bincount(which, minlength=len(curves))
        steps = np.bincount(row, rest - own[which]) / np.bincount(row)
    left = rest - own[which] - steps[row]
    freedom = max(len(logs) - len(curves) - len(known) + 1, 0)
    noise = math.sqrt((WEIGHT * FIRST_GUESS**2 + float(left @ left)) / (WEIGHT + freedom))
    return Shares(
        own, slopes, known, steps, noise, random.standard_normal(DRAWS), random.standard_normal((len(curves), DRAWS))
    )


def _log_share(curve: Curve, record: Record) -> float:
    reached = curve.seconds(record)
    return min(math.log(reached / max(record.train_s or 0.0, reached)), 0.0)


def _slope(nodes: Array, rows: Array, logs: Array, own: NDArray[np.bool_]) -> float:
    """How the share of one curve goes with its nodes, as far as its runs say so, rows by rows."""
    across, up = 0.0, 0.0
    for one in np.unique(rows[own]):
        here = own & (rows == one)
        n, y = nodes[here] - nodes[here].mean(), logs[here] - logs[here].mean()
        across, up = across + float(n @ n), up + float(n @ y)
    return up / (across + STEADY)


def _along(at: float, places: Array, values: Array) -> float:
    """A line through the points, on beyond the last ones as between the two there."""
    if len(places) == 1:
        return float(values[0])
    right = int(np.clip(np.searchsorted(places, at), 1, len(places) - 1))
    part = (at - places[right - 1]) / (places[right] - places[right - 1])
    return float(values[right - 1] + part * (values[right] - values[right - 1]))
