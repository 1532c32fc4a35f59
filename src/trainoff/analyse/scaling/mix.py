"""The mix of terms that suits what was measured: chosen by leaving node counts out, with a preference for few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analyse.scaling.nonneg import Choice, Solver
from trainoff.analyse.scaling.terms import NOTHING_ALONE, Array, Config, Term, design, matrix, most_rows, tellable

WORSE = 1.15  # so much more error a mix of fewer terms may have
NOTHING = 1e-9
NEGLIGIBLE = 0.01  # an error that nobody cares to make smaller


@dataclass(frozen=True)
class Mix:
    """Seconds as a sum of terms, each with its coefficient in seconds; `rows` is the work they are told for."""

    terms: tuple[Term, ...]
    coefficients: tuple[float, ...]
    rows: float

    def seconds(self, nodes: float, rows: float | None = None) -> float:
        """The time with so many nodes and rows; all rows by default."""
        return float(sum(self.parts(nodes, rows).values()))

    def parts(self, nodes: float, rows: float | None = None) -> dict[str, float]:
        """The seconds of each term, by its name."""
        work = 1.0 if rows is None else rows / self.rows
        values = matrix(self.terms, [nodes], [work])[0] * np.array(self.coefficients)
        return {term.name: float(value) for term, value in zip(self.terms, values, strict=True)}


def most_terms(configs: Sequence[Config]) -> int:
    """One fewer than there are configurations, so that something is left to check by; of two, both."""
    return max(len(configs) - 1, min(len(configs), 2))


def solver_of(terms: Sequence[Term], configs: Sequence[Config], scale: Array, rows: float) -> Solver:
    """A solver of what was measured in multiples of `scale`, so that a per cent is as much wherever it is."""
    return Solver(design(terms, configs, rows) / scale[:, None], most_terms(configs))


def measured(configs: Sequence[Config]) -> Array:
    """The seconds of each configuration."""
    return np.array([config.seconds for config in configs])


def candidates(configs: Sequence[Config]) -> dict[Choice, tuple[Mix, float]]:
    """Every mix without a part that is zero, by the places of its terms, with its sum of squared distances (shares)."""
    terms, _ = tellable(configs)
    rows = most_rows(configs)
    found = solver_of(terms, configs, measured(configs), rows).each(np.ones(len(configs)))
    return {
        chosen: (Mix(tuple(terms[place] for place in chosen), tuple(map(float, values[list(chosen)])), rows), rest)
        for chosen, (values, rest) in found.items()
        if np.all(values[list(chosen)] > 0) and not all(terms[place] in NOTHING_ALONE for place in chosen)
    }


def choose(configs: Sequence[Config]) -> Mix:
    """The mix that predicts left-out node counts best, or one of fewer terms that is hardly worse."""
    found = candidates(configs)
    errors = _left_out_errors(configs, found)
    return found[_preferred(errors) if errors else _closest({chosen: rest for chosen, (_, rest) in found.items()})][0]


def folds(configs: Sequence[Config]) -> list[tuple[list[Config], list[Config]]]:
    """What is kept and what is left out, node count by node count; nothing where too little would be kept."""
    counts = sorted({config.nodes for config in configs})
    if len(counts) < 3:
        return []
    return [([c for c in configs if c.nodes != n], [c for c in configs if c.nodes == n]) for n in counts]


def _left_out_errors(configs: Sequence[Config], choices: Iterable[Choice]) -> dict[Choice, float]:
    """For each choice of terms, how far it is off where it has not seen the measurements, as a share (quadratic mean).

    Where what is kept has too few node counts for a choice, it stands back.
    """
    (terms, _), rows = tellable(configs), most_rows(configs)
    squares: dict[Choice, list[float]] = {chosen: [] for chosen in choices}
    for kept, left in folds(configs):
        found = solver_of(terms, kept, measured(kept), rows).each(np.ones(len(kept)))
        unseen, seconds = design(terms, left, rows), measured(left)
        for chosen in list(squares):
            if chosen not in found:
                del squares[chosen]
                continue
            off = np.log(np.maximum(unseen @ found[chosen][0] / seconds, NOTHING))
            squares[chosen] += [float(value) ** 2 for value in off]
    return {chosen: float(np.sqrt(np.mean(values))) for chosen, values in squares.items() if values}


def _preferred(errors: Mapping[Choice, float]) -> Choice:
    enough = max(WORSE * min(errors.values()), NEGLIGIBLE)
    good = [chosen for chosen, error in errors.items() if error <= enough]
    fewest = min(map(len, good))
    return _closest({chosen: errors[chosen] for chosen in good if len(chosen) == fewest})


def _closest(rests: Mapping[Choice, float]) -> Choice:
    """What comes closest; of equally close ones, whose order is a matter of rounding, the first."""
    return next(chosen for chosen, rest in rests.items() if rest <= min(rests.values()) + NOTHING)
