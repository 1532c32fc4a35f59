"""Made-up studies, of which the truth is known: are the probabilities of advice as often right as they say?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainoff.analysis.advice.posterior import ALIKE, Array, Posterior, RunEvidence, compute_standings, fit_posteriors
from trainoff.analysis.statistics import LEVEL

SETTINGS, RUNS = (2, 9), (1, 6)
APART, NOISE = (0.03, 1.0), (0.02, 0.12)  # settings lie so far apart, and runs of one setting; from study to study
UNLIKE = 0.4  # how much noise differs from setting to setting, in logarithms
SHAKY = 0.2  # of the settings get there in a part of their runs only
LOST = 2.0  # times a typical run: what one takes that does not get there


@dataclass(frozen=True)
class Truth:
    """What is true of the settings of a made-up study, each in the same place."""

    middles: Array  # logarithms of typical times
    noise: Array
    reach: Array

    @property
    def whole(self) -> Array:
        """What each takes, runs that are begun again included."""
        return np.asarray(np.exp(self.middles) * (1 + (1 / self.reach - 1) * LOST))

    def chosen(self, places: Sequence[int]) -> Truth:
        """Of these settings alone."""
        own = list(places)
        return Truth(self.middles[own], self.noise[own], self.reach[own])


@dataclass
class Score:
    """What was said with which probability, and whether it came true."""

    best: list[tuple[float, bool]] = field(default_factory=list)
    near: list[tuple[float, bool]] = field(default_factory=list)
    kept: list[tuple[float, bool]] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    chosen: list[tuple[float, bool]] = field(
        default_factory=list
    )  # the choice of each study: probability, whether best
    regret: list[tuple[float, float]] = field(default_factory=list)  # the same: what was said, and what it was

    @property
    def coverage(self) -> float:
        """How often an interval held the next run."""
        return float(np.mean(self.covered))


@dataclass(frozen=True)
class Bin:
    """Statements of about the same probability: how many, what they said on average, how often they came true."""

    number: int
    said: float
    came_true: float


def made_up(random: np.random.Generator) -> tuple[Truth, list[RunEvidence]]:
    """One study: how settings really are, and what a few runs of each show."""
    number, runs = int(random.integers(*SETTINGS, endpoint=True)), int(random.integers(*RUNS, endpoint=True))
    apart, noise = (np.exp(random.uniform(*np.log(bounds))) for bounds in (APART, NOISE))
    noises = noise * np.exp(UNLIKE * random.standard_normal(number))
    reach = np.where(random.random(number) < SHAKY, random.beta(3, 1, number), 1.0)
    truth = Truth(random.normal(2.0, apart, number), noises, np.maximum(reach, 0.05))
    return truth, [_runs(truth, place, runs, random) for place in range(number)]


def _runs(truth: Truth, place: int, runs: int, random: np.random.Generator) -> RunEvidence:
    there = int(random.binomial(runs, truth.reach[place]))
    logs = truth.middles[place] + truth.noise[place] * random.standard_normal(there)
    return RunEvidence(tuple(map(float, np.exp(logs))), runs - there, LOST * float(np.exp(truth.middles[place])))


def score(studies: int, seed: int, each: Callable[[int], None] = lambda done: None) -> Score:
    """Advise on so many made-up studies, and hold what is said against what is true."""
    random = np.random.default_rng(seed)
    found = Score()
    for done in range(studies):
        truth, evidence = made_up(random)
        there = [place for place, one in enumerate(evidence) if one.seconds]
        if len(there) > 1:
            never = [one for one in evidence if not one.seconds]
            beliefs = fit_posteriors([evidence[place] for place in there], random, never)
            _judge(found, truth.chosen(there), beliefs, random)
        each(done)
    return found


def _judge(found: Score, truth: Truth, beliefs: Sequence[Posterior], random: np.random.Generator) -> None:
    standings = compute_standings([one.whole for one in beliefs])
    least, first = truth.whole.min(), int(truth.whole.argmin())
    for place, (belief, standing) in enumerate(zip(beliefs, standings, strict=True)):
        found.best.append((standing.best, place == first))
        found.near.append((standing.near_best, bool(truth.whole[place] <= least * (1 + ALIKE))))
        low, high = np.quantile(belief.single, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        run = np.exp(truth.middles[place] + truth.noise[place] * random.standard_normal())
        found.covered.append(bool(low <= run <= high))
        limit = float(np.exp(random.normal(truth.middles[place], 0.1)))
        got_there = random.random() < truth.reach[place]
        found.kept.append((belief.kept(limit), bool(got_there and run <= limit)))
    choice = min(range(len(standings)), key=lambda place: standings[place].regret)
    found.chosen.append((standings[choice].best, choice == first))
    found.regret.append((standings[choice].regret, float(truth.whole[choice] / least - 1)))


def reliability(pairs: Sequence[tuple[float, bool]], bins: int = 10) -> list[Bin]:
    """Statements by their probability, in equal steps; steps without a statement are left out."""
    said, true = np.array([one for one, _ in pairs]), np.array([came for _, came in pairs])
    steps = np.minimum((said * bins).astype(int), bins - 1)
    return [
        Bin(int(own.sum()), float(said[own].mean()), float(true[own].mean()))
        for step in range(bins)
        if (own := steps == step).any()
    ]


def off(pairs: Sequence[tuple[float, bool]]) -> float:
    """How far probabilities are from what came true, on average over all statements (the calibration error)."""
    found = reliability(pairs)
    return sum(one.number * abs(one.said - one.came_true) for one in found) / len(pairs)
