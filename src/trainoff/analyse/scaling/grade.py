"""The grade of a model: how far its predictions are off on runs that it has not seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainoff.analyse.scaling.mix import Mix, choose, folds
from trainoff.analyse.scaling.terms import Config


@dataclass(frozen=True)
class Grade:
    """Errors as a share of what was measured, +0.1 being a prediction that is 10 % too long.

    `left_out` are those at each node count when the model was fitted to all others; `held_out` those at
    configurations that were kept from the model altogether. Both are empty where there was nothing to check by.
    """

    left_out: Mapping[int, float] = field(default_factory=dict)
    held_out: Mapping[tuple[int, float], float] = field(default_factory=dict)

    @property
    def typical(self) -> float | None:
        """The quadratic mean of the errors at node counts inside the measured range; of all where there are none."""
        inside = [*self.left_out.values()][1:-1] or [*self.left_out.values()]
        return math.sqrt(statistics.fmean(error**2 for error in inside)) if inside else None

    @property
    def beyond(self) -> float | None:
        """How well the model sees beyond what it knows: its error at the largest node count when that was left out.

        Where that was smaller than the errors inside, it was luck, and those count.
        """
        return max(abs(self.left_out[max(self.left_out)]), self.typical or 0.0) if self.left_out else None

    @property
    def worst(self) -> float | None:
        """The largest error of all."""
        return max((abs(error) for error in (*self.left_out.values(), *self.held_out.values())), default=None)

    def at(self, extrapolated: bool) -> float | None:
        """The error to expect of a prediction, inside the measured range or beyond it."""
        return self.beyond if extrapolated else self.typical


def grade(configs: Sequence[Config]) -> Grade:
    """Leave out every node count in turn, choose and fit the terms anew, and predict it."""
    return Grade({left[0].nodes: _largest(errors(choose(kept), left).values()) for kept, left in folds(configs)})


def errors(mix: Mix, configs: Iterable[Config]) -> dict[tuple[int, float], float]:
    """How far predictions are off, by nodes and rows."""
    return {(one.nodes, one.rows): mix.seconds(one.nodes, one.rows) / one.seconds - 1 for one in configs}


def _largest(values: Iterable[float]) -> float:
    """The error that is furthest from none."""
    return max(values, key=abs)
