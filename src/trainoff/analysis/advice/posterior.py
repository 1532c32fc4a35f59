"""What runs let one believe of settings: times that could be true, drawn many times, with noise that is shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRAWS = 4000
SEED = 20260211  # the same records give the same advice
UNTIL_KNOWN = 0.05  # how far runs of one setting are thought to lie apart before anybody has looked
WEIGHT = 2  # so many repetitions that first guess is worth
OWN = 4  # so many of a setting's own repetitions weigh as much as those of all others
APART = np.geomspace(0.01, 3.0, 60)  # how far settings may lie apart: 1 % to 20 times
UNKNOWN = 0.5  # before anybody has looked: between any distance (1) and any order of magnitude (0) being as likely
MIXED = 0.3  # the share of settings that get there only now and then, before anybody has looked
RARELY = 0.02  # a setting gets there in at least so many of its runs, or it is not worth a word


@dataclass(frozen=True)
class RunEvidence:
    """The runs of one setting: the seconds of those that got to the target, and how many did not."""

    seconds: tuple[float, ...]
    failed: int = 0
    lost_s: float = 0.0  # what a run takes that does not get there

    @property
    def runs(self) -> int:
        return len(self.seconds) + self.failed


@dataclass(frozen=True)
class Posterior:
    """What could be true of one setting; a value for each draw."""

    typical: Array  # seconds of a typical run that gets there
    single: Array  # seconds of the next run, if it gets there
    success_rate: Array  # the share of runs that get there
    lost_s: float = 0.0

    @property
    def whole(self) -> Array:
        """Seconds until a run has got there: one that does not is begun again, and its time is lost."""
        return np.asarray(self.typical + (1 / self.success_rate - 1) * self.lost_s)

    def kept(self, most_s: float) -> float:
        """How likely the next run gets there within so many seconds."""
        return float(np.mean(self.success_rate * (self.single <= most_s)))


def fit_posteriors(
    evidence: Sequence[RunEvidence], random: np.random.Generator, never: Sequence[RunEvidence] = ()
) -> list[Posterior]:
    """Beliefs of settings of which at least one run got there each; there are others that `never` did.

    Logarithms of times are normal. How far runs of one setting lie apart is learnt from all settings, more from its
    own the more of them there are; how far settings lie apart, too, so that the best of many that are nearly alike
    is not taken for better than it is.
    """
    logs = [np.log(one.seconds) for one in evidence]
    counts = np.array([len(own) for own in logs])
    means = np.array([own.mean() for own in logs])
    noise = _noise(logs, random)
    errors = noise / np.sqrt(counts)[:, None]
    middles = _middles(means, errors, random)
    single = np.exp(middles + noise * random.standard_normal(noise.shape))
    reach = success_rates([(len(one.seconds), one.failed) for one in (*evidence, *never)], random)
    return [
        Posterior(np.exp(middles[place]), single[place], reach[place], one.lost_s) for place, one in enumerate(evidence)
    ]


def pooled_noise(logs: Sequence[Array]) -> tuple[float, int]:
    """How far runs of one setting lie apart, by all repetitions, and how many degrees of freedom say so."""
    squares = sum(float(np.sum((own - own.mean()) ** 2)) for own in logs)
    freedom = sum(len(own) - 1 for own in logs)
    return math.sqrt((WEIGHT * UNTIL_KNOWN**2 + squares) / (WEIGHT + freedom)), freedom


def _noise(logs: Sequence[Array], random: np.random.Generator) -> Array:
    """Strengths of noise of each setting, a row of draws each."""
    shared, freedom = pooled_noise(logs)
    weight = min(WEIGHT + freedom, OWN)
    own = np.array([float(np.sum((each - each.mean()) ** 2)) for each in logs])
    degrees = weight + np.array([len(each) - 1 for each in logs])
    squares = weight * shared**2 + own
    return np.asarray(np.sqrt(squares[:, None] / random.chisquare(degrees[:, None], (len(logs), DRAWS))))


def _middles(means: Array, errors: Array, random: np.random.Generator) -> Array:
    """Logarithms of the typical times: the means of the runs, drawn together as far as settings are alike."""
    apart = _apart(means, np.sqrt(np.mean(errors**2, axis=1)), random)
    weights = 1 / (errors**2 + apart**2)
    centre = (weights * means[:, None]).sum(0) / weights.sum(0) + random.standard_normal(DRAWS) / np.sqrt(
        weights.sum(0)
    )
    own, others = 1 / errors**2, 1 / apart**2
    middle = (own * means[:, None] + others * centre) / (own + others)
    return np.asarray(middle + random.standard_normal(errors.shape) / np.sqrt(own + others))


def _apart(means: Array, errors: Array, random: np.random.Generator) -> Array:
    """How far settings lie apart, as standard deviations that suit their means, as likely as they are."""
    weights = 1 / (errors[:, None] ** 2 + APART**2)
    total = weights.sum(0)
    centre = (weights * means[:, None]).sum(0) / total
    distances = (weights * (means[:, None] - centre) ** 2).sum(0)
    logs = 0.5 * (np.log(weights).sum(0) - np.log(total) - distances) + UNKNOWN * np.log(APART)
    chances = np.exp(logs - logs.max())
    return random.choice(APART, DRAWS, p=chances / chances.sum())


def success_rates(counts: Sequence[tuple[int, int]], random: np.random.Generator) -> Array:
    """Shares of runs that get there, for settings of which so many runs did and so many did not.

    Before a setting's own runs, what counts is how many settings get there here, and how many of them only now and
    then: the fewer those are, the more a few runs say, since the others get there always or never.
    """
    usual = (sum(good >= bad for good, bad in counts) + 1) / (len(counts) + 2)
    weight = (sum(bool(good and bad) for good, bad in counts) + 2 * MIXED) / (len(counts) + 2)
    drawn = [random.beta(weight * usual + good, weight * (1 - usual) + bad, DRAWS) for good, bad in counts]
    return np.maximum(np.stack(drawn), RARELY)


ALIKE = 0.1  # within so much of the best is about as good


@dataclass(frozen=True)
class Standing:
    """Where one candidate stands among all that were weighed."""

    best: float  # how likely it is the best of them
    near_best: float  # how likely it is within 10 % of the best
    regret: float  # how much more it takes than the best, on average: 0.05 is 5 %


def compute_standings(values: Sequence[Array]) -> list[Standing]:
    """Standings by what is to be small, seconds or dollars; a value for each draw of each candidate.

    The choice should be by the smallest regret: of several that are nearly alike none is likely to be the very best,
    and yet each of them is a good choice.
    """
    logs = np.log(np.stack(values))
    least = logs.min(axis=0)
    first = logs.argmin(axis=0)
    return [
        Standing(
            float(np.mean(first == place)),
            float(np.mean(own - least <= math.log1p(ALIKE))),
            math.expm1(float(np.mean(own - least))),
        )
        for place, own in enumerate(logs)
    ]


def ratio_quantiles(of: Array, to: Array, level: float) -> tuple[float, float, float]:
    """How many times as much one candidate takes as another: from, middle, to."""
    low, middle, high = np.quantile(of / to, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return float(low), float(middle), float(high)
