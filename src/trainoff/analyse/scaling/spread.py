"""How uncertain a fitted model is: the same measurements made up again and again, each time with fresh noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analyse.scaling.mix import Mix, candidates, measured, solver_of
from trainoff.analyse.scaling.terms import Array, Config, Term, matrix, tellable

DRAWS = 1000
SEED = 20170501  # the same records give the same interval
UNTIL_KNOWN = 0.05  # how far runs of one setting are thought to lie apart before anybody has looked
WEIGHT = 2  # so many measurements that first guess is worth
MOST_NOISE = 0.5


@dataclass(frozen=True)
class Spread:
    """Models that could as well have been fitted, and the noise of a single run in each of them."""

    terms: tuple[Term, ...]
    coefficients: Array  # a row for each term, a column for each model
    noise: Array  # one factor for each model
    rows: float

    def quantiles(self, nodes: float, rows: float | None, level: float) -> tuple[float, float]:
        """What encloses a run with so many nodes in this share of all cases."""
        low, high = np.quantile(self.drawn(nodes, rows) * self.noise, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def drawn(self, nodes: float, rows: float | None) -> Array:
        """The seconds of a typical run with so many nodes, in each of the models."""
        work = matrix(self.terms, [nodes], [1.0 if rows is None else rows / self.rows])[0]
        return np.asarray(work @ self.coefficients)


def spread(mix: Mix, configs: Sequence[Config]) -> Spread:
    """Draw measurements around every mix of terms that could be true, and fit each drawing anew.

    So it holds what noise does to the coefficients, and that other terms might have been the right ones. How strong
    the noise is comes from the distances to the model and from the repetitions, and is itself uncertain.
    """
    random = np.random.default_rng(SEED)
    terms, _ = tellable(configs)
    fitted = _seconds(mix, configs)
    repeats = _repeatability(configs)
    first = _share_of_median(configs, repeats)
    scale = _noise(random, np.log(measured(configs) / fitted), len(mix.terms), first)
    centres = _centres(random, configs, noise_of(mix, configs))
    made = centres / fitted[:, None] * np.exp(scale * random.standard_normal((len(configs), DRAWS)))
    coefficients = solver_of(terms, configs, fitted, mix.rows).solve(made)
    single = scale if repeats is None else np.full(DRAWS, min(repeats, MOST_NOISE))
    return Spread(tuple(terms), coefficients, np.exp(single * random.standard_normal(DRAWS)), mix.rows)


def _seconds(mix: Mix, configs: Sequence[Config]) -> Array:
    return np.array([mix.seconds(config.nodes, config.rows) for config in configs])


def _centres(random: np.random.Generator, configs: Sequence[Config], noise: float) -> Array:
    """For each draw the times by one of the mixes that could be true, as often as Akaike's weights say."""
    found = list(candidates(configs).values())
    logs = np.array([-rest / (2 * noise**2) - len(mix.terms) for mix, rest in found])
    weights = np.exp(logs - logs.max())
    picked = random.choice(len(found), DRAWS, p=weights / weights.sum())
    return np.stack([_seconds(mix, configs) for mix, _ in found], axis=1)[:, picked]


def noise_of(mix: Mix, configs: Sequence[Config]) -> float:
    """The best guess of the noise at one configuration, as a share."""
    off = np.log(measured(configs) / _seconds(mix, configs))
    return _guess(off, len(mix.terms), _share_of_median(configs, _repeatability(configs)))[0]


def _guess(off: Array, terms: int, first: float) -> tuple[float, int]:
    """The noise and how many measurements it rests on, the first guess among them."""
    freedom = max(len(off) - terms, 0)
    squares = WEIGHT * first**2 + float(off @ off)
    return min(math.sqrt(squares / (WEIGHT + freedom)), MOST_NOISE), WEIGHT + freedom


def _noise(random: np.random.Generator, off: Array, terms: int, first: float) -> Array:
    """Strengths of noise that suit these distances from the model, as likely as they are."""
    guess, freedom = _guess(off, terms, first)
    return np.minimum(guess * np.sqrt(freedom / random.chisquare(freedom, DRAWS)), MOST_NOISE)


def _repeatability(configs: Sequence[Config]) -> float | None:
    """How far runs of one configuration lie apart (standard deviation of logarithms); None without repetitions."""
    squares, freedom = 0.0, 0
    for config in configs:
        logs = np.log(config.runs)
        squares += float(np.sum((logs - logs.mean()) ** 2))
        freedom += len(logs) - 1
    return math.sqrt((squares + UNTIL_KNOWN**2) / (freedom + 1)) if freedom else None


def _share_of_median(configs: Sequence[Config], repeats: float | None) -> float:
    """What of that is left in the median of a configuration's runs."""
    if repeats is None:
        return UNTIL_KNOWN
    runs = float(np.mean([len(config.runs) for config in configs]))
    return repeats * math.sqrt((math.pi / 2 if runs > 2 else 1.0) / runs)
