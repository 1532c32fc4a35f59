"""Choose the runs that sharpen the predictions asked for most, for every second that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analysis.scaling.model import (
    CONSTANT,
    WORK,
    Array,
    Fit,
    Formula,
    Measurement,
    possible_terms,
    term_matrix,
)
from trainoff.analysis.statistics import DEVIATIONS, UNTIL_KNOWN

LITTLE = 0.04  # a run that removes less than this share of a curve's variance is not proposed
CLOSE = 0.05  # nor is one for a curve whose predictions are as narrow as this
SERIAL = 0.1  # of one node's time, assumed if nothing is known of how an engine scales
MOST_RUNS = 50


@dataclass(frozen=True)
class RunCandidate:
    """A run that could be made, and its expected time, start-up included."""

    curve: str
    nodes: int
    rows: float
    seconds: float


@dataclass(frozen=True)
class DesignedRun:
    """A run to make, the seconds spent after it, and the width of its curve's predictions before and after.

    A width of 0.2 is 20 % up and down.
    """

    candidate: RunCandidate
    spent_s: float
    before: float
    width: float


@dataclass(frozen=True)
class Subject:
    """A curve to be predicted: its assumed formula, its measurements, and the nodes and rows to predict."""

    formula: Formula
    measurements: tuple[Measurement, ...]
    at: tuple[tuple[int, float], ...]  # nodes and rows
    noise: float = UNTIL_KNOWN

    @staticmethod
    def of_fit(fit: Fit, at: Iterable[int]) -> Subject:
        """Return the curve of a fitted model, to be predicted at these node counts."""
        places = tuple((nodes, fit.formula.rows) for nodes in at)
        return Subject(fit.formula, fit.measurements, places, fit.noise)

    @staticmethod
    def of_one_count(measurements: Sequence[Measurement], at: Iterable[int]) -> Subject:
        """Return a curve measured at one node count; a tenth of one node's time is assumed to be constant."""
        largest = max(measurements, key=lambda each: each.rows)
        alone = largest.seconds / (SERIAL + (1 - SERIAL) / largest.nodes)
        formula = Formula((CONSTANT, WORK), (SERIAL * alone, (1 - SERIAL) * alone), largest.rows)
        return Subject(formula, tuple(measurements), tuple((nodes, largest.rows) for nodes in at))


class Information:
    """What is known of one curve as an information matrix; variances are of shares of the predicted time.

    Before anything is known, each term may be as large as the whole prediction.
    """

    def __init__(self, subject: Subject, several_rows: bool) -> None:
        self._subject = subject
        self._terms = possible_terms(subject.measurements, several_rows)
        self._targets = np.stack([self._row(*place) for place in subject.at])
        self.matrix = np.diag(np.mean(self._targets**2, axis=0) + 1e-12)
        for each in subject.measurements:
            self.matrix = self.matrix + len(each.runs) * self.of_run(each.nodes, each.rows)

    def _row(self, nodes: int, rows: float) -> Array:
        formula = self._subject.formula
        row = term_matrix(self._terms, [nodes], [rows / formula.rows])[0]
        return np.asarray(row / formula.seconds(nodes, rows))

    def of_run(self, nodes: int, rows: float) -> Array:
        """Return the information that one run adds."""
        row = self._row(nodes, rows) / self._subject.noise
        return np.outer(row, row)

    def variance(self, information: Array) -> float:
        """Return the mean variance of the predictions asked for."""
        solved = np.linalg.solve(information, self._targets.T)
        return float(np.mean(np.sum(self._targets.T * solved, axis=0)))


def design(subjects: Mapping[str, Subject], candidates: Sequence[RunCandidate], seconds: float) -> list[DesignedRun]:
    """Choose the runs to make within so many seconds, in order; none if none fits or none would help.

    Greedily, the run that removes most variance of the predictions asked for is chosen, once by the variance for each
    second it takes and once by the variance alone; the better plan wins. A run that is chosen several times is
    repeated.
    """
    plans = [_greedy(subjects, candidates, seconds, price) for price in (lambda each: each.seconds, lambda each: 1.0)]
    return min(plans, key=lambda plan: plan[1])[0]


def grid(counts: Iterable[int], rows: Iterable[float], most: int) -> list[tuple[int, float]]:
    """Return nodes and rows worth running: 1, 2, 3, 4, 6, 8, 12, ... nodes up to `most`, and those measured."""
    powers = [2**power for power in range(most.bit_length())]
    nodes = {*counts, *powers, *(3 * power // 2 for power in powers[1:]), most}
    return [(count, each) for count in sorted(nodes) if count <= most for each in sorted(set(rows))]


def _greedy(
    subjects: Mapping[str, Subject],
    candidates: Sequence[RunCandidate],
    seconds: float,
    price: Callable[[RunCandidate], float],
) -> tuple[list[DesignedRun], float]:
    """Return the runs in the order of their gain for their price, and the variance that is left."""
    rows = {name: {each.rows for each in subject.measurements} for name, subject in subjects.items()}
    for candidate in candidates:
        rows[candidate.curve].add(candidate.rows)
    curves = {name: Information(subject, len(rows[name]) > 1) for name, subject in subjects.items()}
    known = {name: curve.matrix for name, curve in curves.items()}
    left = {name: curve.variance(known[name]) for name, curve in curves.items()}
    chosen: list[DesignedRun] = []
    spent = 0.0

    def after(run: RunCandidate) -> tuple[Array, float]:
        curve = curves[run.curve]
        information = known[run.curve] + curve.of_run(run.nodes, run.rows)
        return information, curve.variance(information)

    while len(chosen) < MOST_RUNS:
        wide = [run for run in candidates if _width(left[run.curve]) > CLOSE]
        gains = [(left[run.curve] - after(run)[1], run) for run in wide if spent + run.seconds <= seconds]
        useful = [(gain, run) for gain, run in gains if gain > LITTLE * left[run.curve]]
        if not useful:
            break
        _, best = max(useful, key=lambda pair: pair[0] / price(pair[1]))
        before = _width(left[best.curve])
        known[best.curve], left[best.curve] = after(best)
        spent += best.seconds
        chosen.append(DesignedRun(best, spent, before, _width(left[best.curve])))
    return chosen, sum(left.values())


def _width(variance: float) -> float:
    return DEVIATIONS * math.sqrt(variance)
