"""A fitted scaling model: what it predicts, where it is best, what more nodes bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainoff.analyse.scaling.grade import Grade, errors, grade
from trainoff.analyse.scaling.mix import Mix, choose
from trainoff.analyse.scaling.spread import Spread, noise_of, spread
from trainoff.analyse.scaling.terms import Config, tellable
from trainoff.analysis.statistics import LEVEL

FAR = 16  # times the largest measured node count: what is looked at for the best one
UNCHECKED = 0.2  # what each doubling beyond the measured widens an interval by, where nothing could be checked
FURTHEST = 10.0  # times the best guess and its tenth: an interval that goes further says no more
NEAR = 0.1  # what counts as hardly more


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run that nobody need have made: the best guess, what encloses it in 95 %, and its grade."""

    nodes: int
    rows: float
    low: float
    middle: float
    high: float
    extrapolated: bool
    error: float | None  # by how much such predictions were off where they could be checked; None: nowhere


@dataclass(frozen=True)
class Fit:
    """The scaling model of one engine in one setting."""

    configs: tuple[Config, ...]
    mix: Mix
    spread: Spread
    grade: Grade
    remarks: tuple[str, ...] = ()  # what could not be told by these runs

    @property
    def terms(self) -> dict[str, float]:
        """The coefficient of each term, in seconds; of the largest number of rows that was measured."""
        return {term.name: value for term, value in zip(self.mix.terms, self.mix.coefficients, strict=True)}

    @property
    def counts(self) -> list[int]:
        """The node counts that it rests on."""
        return sorted({config.nodes for config in self.configs})

    @property
    def noise(self) -> float:
        """How far a measurement lies from the model, as a share."""
        return noise_of(self.mix, self.configs)

    def predict(self, nodes: int, rows: float | None = None) -> Estimate:
        """The seconds of a run with so many nodes; with the largest number of rows that was measured by default."""
        work = self.mix.rows if rows is None else rows
        middle = self.mix.seconds(nodes, work)
        low, high = self.spread.quantiles(nodes, work, LEVEL)
        room = math.exp(self.doubt(nodes))
        low, high = max(low, middle / FURTHEST), min(high, middle * FURTHEST)
        beyond = self._beyond(nodes, work)
        return Estimate(
            nodes, work, min(low, middle / room), middle, max(high, middle * room), beyond, self.grade.at(beyond)
        )

    def speed_up(self, nodes: int, rows: float | None = None) -> float:
        """How many times faster than one node."""
        return self.mix.seconds(1, rows) / self.mix.seconds(nodes, rows)

    def efficiency(self, nodes: int, rows: float | None = None) -> float:
        """The speed-up as a share of the nodes."""
        return self.speed_up(nodes, rows) / nodes

    def best(self) -> int:
        """The number of nodes with the shortest time, as far as is looked: 16 times the largest that was measured."""
        return min(range(1, self.horizon + 1), key=lambda nodes: (self.mix.seconds(nodes), nodes))

    def enough(self) -> int:
        """The fewest nodes that come within 10 % of the best time of any number."""
        least = self.mix.seconds(self.best())
        return next(n for n in range(1, self.horizon + 1) if self.mix.seconds(n) * (1 - NEAR) <= least)

    @property
    def horizon(self) -> int:
        return FAR * self.counts[-1]

    def doubt(self, nodes: int) -> float:
        """The least half width of an interval beyond the measured, in logarithms: what the model was off when checked.

        The further away, the more, in doublings: seen from 8, 32 nodes are twice as far as 8 from 4.
        """
        counts = self.counts
        if nodes <= counts[-1]:
            return 0.0
        if self.grade.beyond is None:
            return min(UNCHECKED * math.log2(nodes / counts[-1]), math.log(FURTHEST))
        steps = math.log(nodes / counts[-1]) / math.log(counts[-1] / counts[-2])
        return min(math.log1p(self.grade.beyond) * max(1.0, steps), math.log(FURTHEST))

    def _beyond(self, nodes: int, rows: float) -> bool:
        work = [config.rows for config in self.configs]
        return not (self.counts[0] <= nodes <= self.counts[-1] and min(work) <= rows <= max(work))


def fit(configs: Sequence[Config]) -> Fit:
    """Fit the model to runs with at least two numbers of nodes, or of rows; then only the rows may be asked for."""
    ordered = tuple(sorted(configs, key=lambda config: (config.nodes, config.rows)))
    if len({config.nodes for config in ordered}) < 2 and len({config.rows for config in ordered}) < 2:
        raise ValueError("a scaling model needs runs with at least two numbers of nodes, or of rows")
    mix = choose(ordered)
    return Fit(ordered, mix, spread(mix, ordered), grade(ordered), tuple(tellable(ordered)[1]))


def graded(model: Fit, unseen: Sequence[Config]) -> Fit:
    """The same model with its errors on runs that were kept from it."""
    return replace(model, grade=Grade(model.grade.left_out, errors(model.mix, unseen)))
