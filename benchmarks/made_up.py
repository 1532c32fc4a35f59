"""Made-up studies with a known truth, and the calibration of the probabilities that advice gives for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainoff.analysis.advice.posterior import ALIKE, Array, Posterior, RunEvidence, compute_standings, fit_posteriors
from trainoff.analysis.statistics import LEVEL

SETTINGS, RUNS = (2, 9), (1, 6)
APART, NOISE = (0.03, 1.0), (0.02, 0.12)  # the spread of settings and of runs of one setting, as ranges over studies
UNLIKE = 0.4  # the spread of the noise of settings, in logarithms
UNRELIABLE = 0.2  # of the settings reach the target only in some of their runs
LOST = 2.0  # the time of a run that misses the target, in typical runs


@dataclass(frozen=True)
class Truth:
    """The true times, noise and reliability of the settings of a made-up study."""

    middles: Array  # logarithms of typical times
    noise: Array
    reached: Array  # the share of runs that reach the target

    @property
    def whole(self) -> Array:
        """Return the expected time of each setting, repeated runs included."""
        return np.asarray(np.exp(self.middles) * (1 + (1 / self.reached - 1) * LOST))

    def chosen(self, places: Sequence[int]) -> Truth:
        """Return the truth about these settings."""
        chosen = list(places)
        return Truth(self.middles[chosen], self.noise[chosen], self.reached[chosen])


@dataclass
class Score:
    """Claims with their probabilities, and whether they came true."""

    best: list[tuple[float, bool]] = field(default_factory=list)
    near_best: list[tuple[float, bool]] = field(default_factory=list)
    kept: list[tuple[float, bool]] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    chosen: list[tuple[float, bool]] = field(
        default_factory=list
    )  # the choice of each study: probability, whether best
    regret: list[tuple[float, float]] = field(default_factory=list)  # of each choice: claimed, true

    @property
    def coverage(self) -> float:
        """Return how often an interval held the next run."""
        return float(np.mean(self.covered))


@dataclass(frozen=True)
class Bin:
    """Claims of about the same probability: their number, their mean, and how often they came true."""

    number: int
    claimed: float
    came_true: float


def made_up(random: np.random.Generator) -> tuple[Truth, list[RunEvidence]]:
    """Return a made-up study: the truth about its settings, and the evidence of a few runs of each."""
    number, runs = int(random.integers(*SETTINGS, endpoint=True)), int(random.integers(*RUNS, endpoint=True))
    apart, noise = (np.exp(random.uniform(*np.log(bounds))) for bounds in (APART, NOISE))
    noises = noise * np.exp(UNLIKE * random.standard_normal(number))
    reached = np.where(random.random(number) < UNRELIABLE, random.beta(3, 1, number), 1.0)
    truth = Truth(random.normal(2.0, apart, number), noises, np.maximum(reached, 0.05))
    return truth, [_runs(truth, place, runs, random) for place in range(number)]


def _runs(truth: Truth, place: int, runs: int, random: np.random.Generator) -> RunEvidence:
    successes = int(random.binomial(runs, truth.reached[place]))
    logs = truth.middles[place] + truth.noise[place] * random.standard_normal(successes)
    return RunEvidence(tuple(map(float, np.exp(logs))), runs - successes, LOST * float(np.exp(truth.middles[place])))


def score(studies: int, seed: int, each: Callable[[int], None] = lambda done: None) -> Score:
    """Advise on made-up studies and compare the claims with the truth."""
    random = np.random.default_rng(seed)
    found = Score()
    for done in range(studies):
        truth, evidence = made_up(random)
        possible = [place for place, one in enumerate(evidence) if one.seconds]
        if len(possible) > 1:
            never = [one for one in evidence if not one.seconds]
            posteriors = fit_posteriors([evidence[place] for place in possible], random, never)
            _judge(found, truth.chosen(possible), posteriors, random)
        each(done)
    return found


def _judge(found: Score, truth: Truth, posteriors: Sequence[Posterior], random: np.random.Generator) -> None:
    standings = compute_standings([one.whole for one in posteriors])
    least, first = truth.whole.min(), int(truth.whole.argmin())
    for place, (posterior, standing) in enumerate(zip(posteriors, standings, strict=True)):
        found.best.append((standing.best, place == first))
        found.near_best.append((standing.near_best, bool(truth.whole[place] <= least * (1 + ALIKE))))
        low, high = np.quantile(posterior.single, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        run = np.exp(truth.middles[place] + truth.noise[place] * random.standard_normal())
        found.covered.append(bool(low <= run <= high))
        limit = float(np.exp(random.normal(truth.middles[place], 0.1)))
        has_reached = random.random() < truth.reached[place]
        found.kept.append((posterior.kept(limit), bool(has_reached and run <= limit)))
    choice = min(range(len(standings)), key=lambda place: standings[place].regret)
    found.chosen.append((standings[choice].best, choice == first))
    found.regret.append((standings[choice].regret, float(truth.whole[choice] / least - 1)))


def reliability(pairs: Sequence[tuple[float, bool]], bins: int = 10) -> list[Bin]:
    """Return claims by probability, in equal steps; steps without a claim are left out."""
    claimed, true = np.array([one for one, _ in pairs]), np.array([came for _, came in pairs])
    steps = np.minimum((claimed * bins).astype(int), bins - 1)
    return [
        Bin(int(inside.sum()), float(claimed[inside].mean()), float(true[inside].mean()))
        for step in range(bins)
        if (inside := steps == step).any()
    ]


def calibration_error(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return how far probabilities are from what came true, on average over all claims."""
    found = reliability(pairs)
    return sum(one.number * abs(one.claimed - one.came_true) for one in found) / len(pairs)
