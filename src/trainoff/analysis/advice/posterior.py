"""Posteriors of the times of settings: draws of what could be true, with noise that settings share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.statistics import UNTIL_KNOWN, WEIGHT, pooled_squares

Array = NDArray[np.float64]

DRAWS = 4000
SEED = 20260211  # the same records give the same advice
OWN_WEIGHT = 4  # how many of a setting's own repetitions weigh as much as those of all others
SCALES = np.geomspace(0.01, 3.0, 60)  # how far apart settings may lie: 1 % to 20 times
SCALE_PRIOR = 0.5  # between every distance (1) and every order of magnitude (0) being equally likely
MIXED = 0.3  # the prior share of settings that reach the target only in some of their runs
LOWEST_RATE = 0.02  # a setting that can reach the target does so in at least this share of its runs


@dataclass(frozen=True)
class RunEvidence:
    """The runs of one setting: the seconds of those that reached the target, and how many did not."""

    seconds: tuple[float, ...]
    failed: int = 0
    lost_s: float = 0.0  # the seconds that a failed run takes

    @property
    def runs(self) -> int:
        return len(self.seconds) + self.failed


@dataclass(frozen=True)
class Posterior:
    """What could be true of one setting; a value for each draw."""

    typical: Array  # seconds of a typical run that reaches the target
    single: Array  # seconds of the next run if it reaches the target
    success_rate: Array  # the share of runs that reach the target
    lost_s: float = 0.0

    @property
    def whole(self) -> Array:
        """Seconds until a run has reached the target; one that fails is repeated, and its time is lost."""
        return np.asarray(self.typical + (1 / self.success_rate - 1) * self.lost_s)

    def kept(self, most_s: float) -> float:
        """Return the probability that the next run reaches the target within so many seconds."""
        return float(np.mean(self.success_rate * (self.single <= most_s)))


def fit_posteriors(
    evidence: Sequence[RunEvidence], random: np.random.Generator, never: Sequence[RunEvidence] = ()
) -> list[Posterior]:
    """Fit the posterior of each setting; in each of `evidence` at least one run reached the target, in `never` none.

    Logarithms of times are normal. How far apart runs of one setting lie is estimated from all settings, more from its
    own the more of them there are; so is how far apart settings lie, so that the best of many similar settings is not
    taken for better than it is.
    """
    logs = [np.log(each.seconds) for each in evidence]
    counts = np.array([len(values) for values in logs])
    means = np.array([values.mean() for values in logs])
    noise = _noise(logs, random)
    middles = _middles(means, noise / np.sqrt(counts)[:, None], random)
    single = np.exp(middles + noise * random.standard_normal(noise.shape))
    rates = success_rates([(len(each.seconds), each.failed) for each in (*evidence, *never)], random)
    return [Posterior(np.exp(middles[i]), single[i], rates[i], each.lost_s) for i, each in enumerate(evidence)]


def pooled_noise(logs: Sequence[Array]) -> tuple[float, int]:
    """Return how far apart runs of one setting lie, from all repetitions, and its degrees of freedom."""
    squares, freedom = pooled_squares([values.tolist() for values in logs])
    return math.sqrt((WEIGHT * UNTIL_KNOWN**2 + squares) / (WEIGHT + freedom)), freedom


def _noise(logs: Sequence[Array], random: np.random.Generator) -> Array:
    """Draw the noise of each setting, a row each."""
    shared, freedom = pooled_noise(logs)
    weight = min(WEIGHT + freedom, OWN_WEIGHT)
    squares = np.array([float(np.sum((values - values.mean()) ** 2)) for values in logs])
    degrees = weight + np.array([len(values) - 1 for values in logs])
    total = weight * shared**2 + squares
    return np.asarray(np.sqrt(total[:, None] / random.chisquare(degrees[:, None], (len(logs), DRAWS))))


def _middles(means: Array, errors: Array, random: np.random.Generator) -> Array:
    """Draw the logarithms of the typical times: the means, drawn towards each other as far as settings are alike."""
    scales = _scales(means, np.sqrt(np.mean(errors**2, axis=1)), random)
    weights = 1 / (errors**2 + scales**2)
    total = weights.sum(0)
    centre = (weights * means[:, None]).sum(0) / total + random.standard_normal(DRAWS) / np.sqrt(total)
    precision, prior = 1 / errors**2, 1 / scales**2
    middle = (precision * means[:, None] + prior * centre) / (precision + prior)
    return np.asarray(middle + random.standard_normal(errors.shape) / np.sqrt(precision + prior))


def _scales(means: Array, errors: Array, random: np.random.Generator) -> Array:
    """Draw how far apart settings lie, as standard deviations, by their likelihood given the means."""
    weights = 1 / (errors[:, None] ** 2 + SCALES**2)
    total = weights.sum(0)
    centre = (weights * means[:, None]).sum(0) / total
    distances = (weights * (means[:, None] - centre) ** 2).sum(0)
    logs = 0.5 * (np.log(weights).sum(0) - np.log(total) - distances) + SCALE_PRIOR * np.log(SCALES)
    likelihoods = np.exp(logs - logs.max())
    return random.choice(SCALES, DRAWS, p=likelihoods / likelihoods.sum())


def success_rates(counts: Sequence[tuple[int, int]], random: np.random.Generator) -> Array:
    """Draw the share of runs that reach the target, for settings with so many runs that did and so many that did not.

    The prior is how many settings reach the target here, and how many of them only in some runs: the fewer those are,
    the more a few runs say, since the others always or never reach it.
    """
    usual = (sum(good >= bad for good, bad in counts) + 1) / (len(counts) + 2)
    weight = (sum(bool(good and bad) for good, bad in counts) + 2 * MIXED) / (len(counts) + 2)
    rates = [random.beta(weight * usual + good, weight * (1 - usual) + bad, DRAWS) for good, bad in counts]
    return np.maximum(np.stack(rates), LOWEST_RATE)


ALIKE = 0.1  # a candidate within this share of the best is about as good


@dataclass(frozen=True)
class Standing:
    """How one candidate compares with all that were considered."""

    best: float  # the probability that it is the best of them
    near_best: float  # the probability that it is within 10 % of the best
    regret: float  # how much more it takes than the best, on average: 0.05 is 5 %


def compute_standings(values: Sequence[Array]) -> list[Standing]:
    """Compare candidates by seconds or dollars, which have a value for each draw.

    The choice should have the smallest regret: of several similar candidates none is likely to be the very best, and
    yet each of them is a good choice.
    """
    logs = np.log(np.stack(values))
    smallest, first = logs.min(axis=0), logs.argmin(axis=0)
    return [
        Standing(
            float(np.mean(first == i)),
            float(np.mean(each - smallest <= math.log1p(ALIKE))),
            math.expm1(float(np.mean(each - smallest))),
        )
        for i, each in enumerate(logs)
    ]
