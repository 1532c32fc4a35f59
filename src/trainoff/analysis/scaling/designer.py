"""Which runs to make next: those that sharpen the predictions asked for most, for every second that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analysis.scaling.model import (
    CONSTANT,
    UNTIL_KNOWN,
    WORK,
    Array,
    Fit,
    Formula,
    Measurement,
    possible_terms,
    term_matrix,
)

SURE = 1.96  # standard deviations that enclose 95 %
LITTLE = 0.04  # a run that takes away less than this share of a curve's variance is not worth asking for
SERIAL = 0.1  # of one node's time, where nothing is known of how an engine scales
CLOSE = 0.05  # and none once predictions are as close as this
MOST_CHOICES = 50


@dataclass(frozen=True)
class RunCandidate:
    """A run that could be made, and what it should take, start-up included."""

    curve: str
    nodes: int
    rows: float
    seconds: float


@dataclass(frozen=True)
class DesignedRun:
    """A run to make, the seconds gone after it, and how wide its curve's predictions are before and after.

    A width of 0.2 is 20 % up and down.
    """

    candidate: RunCandidate
    spent_s: float
    before: float
    width: float


@dataclass(frozen=True)
class Subject:
    """A curve that is to be predicted: what is believed of it, what was measured, and where it is asked for."""

    formula: Formula
    measurements: tuple[Measurement, ...]
    at: tuple[tuple[int, float], ...]  # nodes and rows
    noise: float = UNTIL_KNOWN

    @staticmethod
    def of_fit(fit: Fit, at: Iterable[int]) -> Subject:
        """A model that is to see better at these node counts."""
        return Subject(fit.formula, fit.measurements, tuple((nodes, fit.formula.rows) for nodes in at), fit.noise)

    @staticmethod
    def of_one_count(measurements: Sequence[Measurement], at: Iterable[int]) -> Subject:
        """Of runs with one number of nodes only: a tenth of one node's time is taken to be constant, until known."""
        largest = max(measurements, key=lambda one: one.rows)
        alone = largest.seconds / (SERIAL + (1 - SERIAL) / largest.nodes)
        formula = Formula((CONSTANT, WORK), (SERIAL * alone, (1 - SERIAL) * alone), largest.rows)
        return Subject(formula, tuple(measurements), tuple((nodes, largest.rows) for nodes in at))


class _Belief:
    """What is known of one curve as an information matrix; variances are of shares of the predicted time.

    Before anything is known, each term may be as large as the whole prediction.
    """

    def __init__(self, subject: Subject, several_rows: bool) -> None:
        self._subject = subject
        self._terms = possible_terms(subject.measurements, several_rows)
        self._goals = np.stack([self._row(*place) for place in subject.at])
        self.information = np.diag(np.mean(self._goals**2, axis=0) + 1e-12)
        for config in subject.measurements:
            self.information = self.information + len(config.runs) * self.worth(config.nodes, config.rows)

    def _row(self, nodes: int, rows: float) -> Array:
        formula = self._subject.formula
        return np.asarray(term_matrix(self._terms, [nodes], [rows / formula.rows])[0] / formula.seconds(nodes, rows))

    def worth(self, nodes: int, rows: float) -> Array:
        """What one run adds."""
        row = self._row(nodes, rows) / self._subject.noise
        return np.outer(row, row)

    def variance(self, information: Array) -> float:
        """Of the predictions asked for, on average."""
        solved = np.linalg.solve(information, self._goals.T)
        return float(np.mean(np.sum(self._goals.T * solved, axis=0)))


def design(subjects: Mapping[str, Subject], candidates: Sequence[RunCandidate], seconds: float) -> list[DesignedRun]:
    """The runs to make within so many seconds, in order; none where none fits or none would help.

    Greedily, the run that takes away most variance of the predictions asked for, once for each second it takes and
    once whatever it takes; the better of the two. A run may be chosen several times: then it is repeated.
    """
    plans = [_greedy(subjects, candidates, seconds, price) for price in (lambda one: one.seconds, lambda one: 1.0)]
    return min(plans, key=lambda plan: plan[1])[0]


def expected_width(subject: Subject) -> float:
    """How wide the predictions of a curve are as things stand."""
    (belief,) = _beliefs({"": subject}, ()).values()
    return _width(belief.variance(belief.information))


def grid(counts: Iterable[int], rows: Iterable[float], most: int) -> list[tuple[int, float]]:
    """Numbers of nodes and rows worth trying: 1, 2, 3, 4, 6, 8, 12, ... up to `most`, and those that are known."""
    powers = [2**power for power in range(most.bit_length())]
    tried = {*counts, *powers, *(3 * power // 2 for power in powers[1:]), most}
    return [(nodes, one) for nodes in sorted(tried) if nodes <= most for one in sorted(set(rows))]


def _beliefs(subjects: Mapping[str, Subject], candidates: Sequence[RunCandidate]) -> dict[str, _Belief]:
    rows = {name: {config.rows for config in subject.measurements} for name, subject in subjects.items()}
    for candidate in candidates:
        rows[candidate.curve].add(candidate.rows)
    return {name: _Belief(subject, len(rows[name]) > 1) for name, subject in subjects.items()}


def _greedy(
    subjects: Mapping[str, Subject],
    candidates: Sequence[RunCandidate],
    seconds: float,
    price: Callable[[RunCandidate], float],
) -> tuple[list[DesignedRun], float]:
    """The runs in the order of what they bring for their price, and the variance that is left."""
    beliefs = _beliefs(subjects, candidates)
    known = {name: belief.information for name, belief in beliefs.items()}
    left = {name: belief.variance(known[name]) for name, belief in beliefs.items()}
    chosen: list[DesignedRun] = []
    spent = 0.0

    def after(one: RunCandidate) -> tuple[Array, float]:
        belief = beliefs[one.curve]
        information = known[one.curve] + belief.worth(one.nodes, one.rows)
        return information, belief.variance(information)

    while len(chosen) < MOST_CHOICES:
        wide = [one for one in candidates if _width(left[one.curve]) > CLOSE]
        fits = [one for one in wide if spent + one.seconds <= seconds]
        gains = [(left[one.curve] - after(one)[1], one) for one in fits]
        worthy = [(gain, one) for gain, one in gains if gain > LITTLE * left[one.curve]]
        if not worthy:
            break
        _, best = max(worthy, key=lambda pair: pair[0] / price(pair[1]))
        before = _width(left[best.curve])
        known[best.curve], left[best.curve] = after(best)
        spent += best.seconds
        chosen.append(DesignedRun(best, spent, before, _width(left[best.curve])))
    return chosen, sum(left.values())


def _width(variance: float) -> float:
    return SURE * math.sqrt(variance)
