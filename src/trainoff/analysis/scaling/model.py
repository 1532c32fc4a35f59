"""A model of the time as a sum of terms of the nodes and rows: how it is fitted, checked and used to predict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.statistics import LEVEL, UNTIL_KNOWN, WEIGHT, pooled_squares

Array = NDArray[np.float64]
Columns = tuple[int, ...]  # of the design matrix

HORIZON = 16  # times the largest measured node count: the range in which the best node count is sought
UNCHECKED = 0.2  # how much each doubling beyond the measured widens an interval if the model could not be checked
WIDEST = 10.0  # an interval ends at 10 times the prediction and at its tenth
SMALL_GAIN = 0.1  # a gain that more nodes are not worth


@dataclass(frozen=True)
class Estimate:
    """A prediction for one run, in seconds, with the interval that holds it in 95 % of all cases."""

    nodes: int
    rows: float
    low: float
    middle: float
    high: float
    extrapolated: bool
    error: float | None  # how far off such predictions were where they could be checked; None: nowhere


@dataclass(frozen=True)
class Fit:
    """The scaling model of one engine in one setting."""

    measurements: tuple[Measurement, ...]
    formula: Formula
    draws: FormulaDraws
    grade: Grade
    remarks: tuple[str, ...] = ()  # which terms these runs cannot tell apart

    @property
    def terms(self) -> dict[str, float]:
        """The coefficient of each term, in seconds at the largest measured number of rows."""
        return {term.name: value for term, value in zip(self.formula.terms, self.formula.coefficients, strict=True)}

    @property
    def counts(self) -> list[int]:
        return sorted({each.nodes for each in self.measurements})

    @property
    def noise(self) -> float:
        """The relative noise of one measurement around the model."""
        return _estimate_noise(self.formula, self.measurements)[0]

    @property
    def horizon(self) -> int:
        """The largest node count that `best_nodes` considers."""
        return HORIZON * self.counts[-1]

    def predict(self, nodes: int, rows: float | None = None) -> Estimate:
        """Predict a run; without `rows`, one with the largest measured number of rows."""
        rows = self.formula.rows if rows is None else rows
        middle = self.formula.seconds(nodes, rows)
        low, high = self.draws.quantiles(nodes, rows, LEVEL)
        margin = math.exp(self.extrapolation_margin(nodes))
        low, high = max(low, middle / WIDEST), min(high, middle * WIDEST)
        measured_rows = [each.rows for each in self.measurements]
        inside = self.counts[0] <= nodes <= self.counts[-1] and min(measured_rows) <= rows <= max(measured_rows)
        low, high = min(low, middle / margin), max(high, middle * margin)
        return Estimate(nodes, rows, low, middle, high, not inside, self.grade.at(not inside))

    def speed_up(self, nodes: int, rows: float | None = None) -> float:
        """Return how many times faster than one node so many nodes are."""
        return self.formula.seconds(1, rows) / self.formula.seconds(nodes, rows)

    def efficiency(self, nodes: int, rows: float | None = None) -> float:
        """Return the speed-up divided by the number of nodes."""
        return self.speed_up(nodes, rows) / nodes

    def best_nodes(self) -> int:
        """Return the fastest number of nodes, up to 16 times the largest measured."""
        return min(range(1, self.horizon + 1), key=lambda nodes: (self.formula.seconds(nodes), nodes))

    def enough_nodes(self) -> int:
        """Return the smallest number of nodes that comes within 10 % of the shortest time."""
        shortest = self.formula.seconds(self.best_nodes())
        counts = range(1, self.horizon + 1)
        return next(nodes for nodes in counts if self.formula.seconds(nodes) * (1 - SMALL_GAIN) <= shortest)

    def extrapolation_margin(self, nodes: int) -> float:
        """Return the smallest half width of an interval beyond the measured node counts, in logarithms.

        It is the error that the model made when it was checked, multiplied by the distance in doublings: seen from 8,
        32 nodes are twice as far as 8 from 4.
        """
        counts = self.counts
        if nodes <= counts[-1]:
            return 0.0
        if self.grade.beyond is None:
            return min(UNCHECKED * math.log2(nodes / counts[-1]), math.log(WIDEST))
        steps = math.log(nodes / counts[-1]) / math.log(counts[-1] / counts[-2])
        return min(math.log1p(self.grade.beyond) * max(1.0, steps), math.log(WIDEST))


def fit(measurements: Sequence[Measurement]) -> Fit:
    """Fit the model to runs with at least two numbers of nodes or, to predict rows only, of rows."""
    ordered = tuple(sorted(measurements, key=lambda each: (each.nodes, each.rows)))
    if len({each.nodes for each in ordered}) < 2 and len({each.rows for each in ordered}) < 2:
        raise ValueError("a scaling model needs runs with at least two numbers of nodes, or of rows")
    formula = choose_formula(ordered)
    remarks = tuple(distinguishable_terms(ordered)[1])
    return Fit(ordered, formula, draw_formulas(formula, ordered), cross_validate(ordered), remarks)


def graded(model: Fit, unseen: Sequence[Measurement]) -> Fit:
    """Return the model with its errors on measurements that were held out."""
    return replace(model, grade=Grade(model.grade.left_out, relative_errors(model.formula, unseen)))


@dataclass(frozen=True)
class Term:
    """One part of the time, as a function of the nodes and of the rows relative to the largest number measured."""

    name: str
    description: str  # "31 s ..."
    value: Callable[[Array, Array], Array]


WORK = Term("work", "divided among the nodes", lambda nodes, work: work / nodes)
CONSTANT = Term("constant", "constant", lambda nodes, work: np.ones_like(nodes))
LOG = Term("log", "for each doubling of the nodes", lambda nodes, work: np.log2(nodes))
TREE = Term("log", "for each doubling, divided too", lambda nodes, work: work * np.log2(nodes) / nodes)
NODES = Term("nodes", "for each node", lambda nodes, work: nodes)
ROWS = Term("rows", "that grow with the rows but are not divided", lambda nodes, work: work)
TERMS = (CONSTANT, WORK, LOG, NODES)  # in the order of preference
FEWER_STEPS = (CONSTANT, WORK, TREE, NODES)  # if batches grow with the nodes
ZERO_ON_ONE_NODE = (LOG, TREE)
PARALLEL = 1 - 1e-9  # a cosine above which two columns cannot be distinguished


@dataclass(frozen=True)
class Measurement:
    """The seconds of every run with one number of nodes and of rows."""

    nodes: int
    rows: float
    runs: tuple[float, ...]
    grows: bool = False  # whether batches grow with the nodes, so that there are fewer steps

    @property
    def seconds(self) -> float:
        return float(np.median(self.runs))


@dataclass(frozen=True)
class Formula:
    """Seconds as a sum of terms, with coefficients in seconds at `rows` rows."""

    terms: tuple[Term, ...]
    coefficients: tuple[float, ...]
    rows: float

    def seconds(self, nodes: float, rows: float | None = None) -> float:
        """Return the time with so many nodes and rows; without `rows`, with `self.rows`."""
        return float(sum(self.parts(nodes, rows).values()))

    def parts(self, nodes: float, rows: float | None = None) -> dict[str, float]:
        """Return the seconds of each term, by its name."""
        work = 1.0 if rows is None else rows / self.rows
        values = term_matrix(self.terms, [nodes], [work])[0] * np.array(self.coefficients)
        return {term.name: float(value) for term, value in zip(self.terms, values, strict=True)}


def term_matrix(terms: Sequence[Term], nodes: Iterable[float], work: Iterable[float]) -> Array:
    """Return a row for each pair of nodes and work, a column for each term."""
    n, w = np.array([*nodes], dtype=float), np.array([*work], dtype=float)
    return np.stack([term.value(n, w) for term in terms], axis=1)


def design_matrix(terms: Sequence[Term], measurements: Sequence[Measurement], rows: float) -> Array:
    """Return the term matrix of measurements; `rows` is the largest number of rows."""
    return term_matrix(terms, [each.nodes for each in measurements], [each.rows / rows for each in measurements])


def median_seconds(measurements: Sequence[Measurement]) -> Array:
    return np.array([each.seconds for each in measurements])


def predicted_seconds(formula: Formula, measurements: Sequence[Measurement]) -> Array:
    return np.array([formula.seconds(each.nodes, each.rows) for each in measurements])


def largest_rows(measurements: Sequence[Measurement]) -> float:
    return max(each.rows for each in measurements)


def possible_terms(measurements: Sequence[Measurement], several_rows: bool) -> tuple[Term, ...]:
    """Return the terms that the time of these measurements may consist of.

    Nodes exchange messages in every step. Work that is not divided is a term of its own only if the rows differ;
    otherwise it is part of the constant.
    """
    terms = FEWER_STEPS if any(each.grows for each in measurements) else TERMS
    return (*terms, ROWS) if several_rows else terms


def distinguishable_terms(measurements: Sequence[Measurement]) -> tuple[list[Term], list[str]]:
    """Return the terms that these measurements can tell apart, and a sentence for each that they cannot."""
    terms = possible_terms(measurements, len({each.rows for each in measurements}) > 1)
    columns = design_matrix(terms, measurements, largest_rows(measurements))
    lengths = np.linalg.norm(columns, axis=0)
    dropped: dict[str, str] = {}
    for term, length in zip(terms, lengths, strict=True):
        if length == 0:
            dropped[term.name] = f"Seconds {term.description} cannot be seen on one node."
    for a, b in combinations(range(len(terms)), 2):
        gone = terms[a].name in dropped or terms[b].name in dropped
        if not gone and columns[:, a] @ columns[:, b] > PARALLEL * lengths[a] * lengths[b]:
            # LOG goes rather than NODES: alone, it would predict no time at all on one node.
            out, kept = (terms[a], terms[b]) if terms[a] is LOG else (terms[b], terms[a])
            dropped[out.name] = (
                f"Seconds {out.description} cannot be distinguished from those {kept.description} by these runs "
                "and are left out."
            )
    return [term for term in terms if term.name not in dropped], list(dropped.values())


WORSE = 1.15  # how many times the smallest error a formula of fewer terms may have
NEGLIGIBLE = 0.01  # errors below it count as equal
ROUNDING = 1e-9  # differences relative to the measured time that are due to rounding


def most_terms(measurements: Sequence[Measurement]) -> int:
    """Return one fewer than there are measurements, so that one is left to check by; of two, both."""
    return max(len(measurements) - 1, min(len(measurements), 2))


def fit_columns(terms: Sequence[Term], measurements: Sequence[Measurement], rows: float) -> Fitted:
    """Fit every choice of terms by least squares of relative errors, so that 1 % counts alike everywhere."""
    matrix = design_matrix(terms, measurements, rows) / median_seconds(measurements)[:, None]
    ones = np.ones(len(measurements))
    choices = independent_columns(matrix, most_terms(measurements))
    return {columns: nnls(matrix[:, columns], ones) for columns in choices}


def candidates(measurements: Sequence[Measurement]) -> dict[Columns, tuple[Formula, float]]:
    """Return every formula without zero terms, by its columns, with its sum of squared relative errors."""
    terms, _ = distinguishable_terms(measurements)
    rows = largest_rows(measurements)
    found = {}
    for columns, (values, error) in fit_columns(terms, measurements, rows).items():
        used = tuple(terms[column] for column in columns)
        if np.all(values > 0) and not all(term in ZERO_ON_ONE_NODE for term in used):
            found[columns] = Formula(used, tuple(map(float, values)), rows), error
    return found


def choose_formula(measurements: Sequence[Measurement]) -> Formula:
    """Return the formula that predicts left-out node counts best, or one of fewer terms that is hardly worse."""
    found = candidates(measurements)
    errors = _left_out_errors(measurements, found)
    if not errors:
        return found[_smallest({columns: error for columns, (_, error) in found.items()})][0]
    allowed = max(WORSE * min(errors.values()), NEGLIGIBLE)
    good = {columns: error for columns, error in errors.items() if error <= allowed}
    fewest = min(map(len, good))
    return found[_smallest({columns: error for columns, error in good.items() if len(columns) == fewest})][0]


def _smallest(errors: Mapping[Columns, float]) -> Columns:
    """Return the columns with the smallest error; among errors that differ by rounding only, the first."""
    return next(columns for columns, error in errors.items() if error <= min(errors.values()) + ROUNDING)


def _folds(measurements: Sequence[Measurement]) -> list[tuple[list[Measurement], list[Measurement]]]:
    """Return the kept and the left-out measurements of each node count; none if too few would be kept."""
    counts = sorted({each.nodes for each in measurements})
    if len(counts) < 3:
        return []
    return [
        ([each for each in measurements if each.nodes != count], [each for each in measurements if each.nodes == count])
        for count in counts
    ]


def _left_out_errors(measurements: Sequence[Measurement], choices: Iterable[Columns]) -> dict[Columns, float]:
    """Return the root mean square of the log errors of each choice of terms on node counts that were left out.

    A choice is missing if what is kept of some fold has too few node counts for it.
    """
    terms, rows = distinguishable_terms(measurements)[0], largest_rows(measurements)
    squares: dict[Columns, list[float]] = {columns: [] for columns in choices}
    for kept, left in _folds(measurements):
        fitted = fit_columns(terms, kept, rows)
        unseen, seconds = design_matrix(terms, left, rows), median_seconds(left)
        squares = {columns: values for columns, values in squares.items() if columns in fitted}
        for columns, values in squares.items():
            predicted = unseen[:, columns] @ fitted[columns][0]
            values += [float(error) ** 2 for error in np.log(np.maximum(predicted / seconds, ROUNDING))]
    return {columns: float(np.sqrt(np.mean(values))) for columns, values in squares.items() if values}


HARDLY_WORSE = 2.0  # in logarithms of Akaike weights: a seventh as likely as the likeliest


def _akaike(found: Iterable[tuple[Formula, float]], noise: float) -> Array:
    """Return the logarithm of the Akaike weight of each formula, up to a constant."""
    return np.array([-error / (2 * noise**2) - len(formula.terms) for formula, error in found])


def alternative_range(fit: Fit, nodes: int, rows: float | None = None) -> tuple[float, float]:
    """Return the smallest and largest prediction by any formula that fits nearly as well, the chosen one included.

    Runs on a few nodes hardly tell time that grows with every node from time that grows with every doubling; far
    away the two differ.
    """
    found = list(candidates(fit.measurements).values())
    weights = _akaike(found, fit.noise)
    least = weights.max() - HARDLY_WORSE
    likely = [formula for (formula, _), weight in zip(found, weights, strict=True) if weight >= least]
    predicted = [formula.seconds(nodes, rows) for formula in (fit.formula, *likely)]
    return min(predicted), max(predicted)


@dataclass(frozen=True)
class Grade:
    """Relative errors of predictions; +0.1 is a prediction that was 10 % too long.

    `left_out` are those at each node count when the model was fitted to all others; `held_out` those on measurements
    that were kept from the model altogether. Both are empty if there was nothing to check by.
    """

    left_out: Mapping[int, float] = field(default_factory=dict)
    held_out: Mapping[tuple[int, float], float] = field(default_factory=dict)

    @property
    def typical(self) -> float | None:
        """The root mean square of the errors inside the measured range; of all errors if there are none inside."""
        inside = [*self.left_out.values()][1:-1] or [*self.left_out.values()]
        return math.sqrt(statistics.fmean(error**2 for error in inside)) if inside else None

    @property
    def beyond(self) -> float | None:
        """The error at the largest node count when it was left out, but no less than the typical error."""
        return max(abs(self.left_out[max(self.left_out)]), self.typical or 0.0) if self.left_out else None

    @property
    def worst(self) -> float | None:
        return max((abs(error) for error in (*self.left_out.values(), *self.held_out.values())), default=None)

    def at(self, extrapolated: bool) -> float | None:
        """Return the error to expect of a prediction inside the measured range or beyond it."""
        return self.beyond if extrapolated else self.typical


def cross_validate(measurements: Sequence[Measurement]) -> Grade:
    """Leave out every node count in turn, choose and fit the terms anew, and predict it."""
    errors = {left[0].nodes: relative_errors(choose_formula(kept), left) for kept, left in _folds(measurements)}
    return Grade({nodes: max(found.values(), key=abs) for nodes, found in errors.items()})


def relative_errors(formula: Formula, measurements: Iterable[Measurement]) -> dict[tuple[int, float], float]:
    """Return the relative errors of predictions, by nodes and rows."""
    return {(each.nodes, each.rows): formula.seconds(each.nodes, each.rows) / each.seconds - 1 for each in measurements}


DRAWS = 1000
SEED = 20170501  # the same records give the same interval
MOST_NOISE = 0.5


@dataclass(frozen=True)
class FormulaDraws:
    """Draws of formulas that fit the measurements, and of the noise of a single run."""

    terms: tuple[Term, ...]
    coefficients: Array  # a row for each term, a column for each draw
    noise: Array  # one factor for each draw
    rows: float

    def quantiles(self, nodes: float, rows: float | None, level: float) -> tuple[float, float]:
        """Return the interval that encloses a run in this share of all cases."""
        tail = (1 - level) / 2
        low, high = np.quantile(self.seconds(nodes, rows) * self.noise, [tail, 1 - tail])
        return float(low), float(high)

    def seconds(self, nodes: float, rows: float | None) -> Array:
        """Return the seconds of a typical run, for each draw."""
        work = term_matrix(self.terms, [nodes], [1.0 if rows is None else rows / self.rows])[0]
        return np.asarray(work @ self.coefficients)


def draw_formulas(formula: Formula, measurements: Sequence[Measurement]) -> FormulaDraws:
    """Draw measurements around every formula that could be true, as often as its Akaike weight says, and fit each anew.

    The draws cover what noise does to the coefficients and that other terms might be the right ones. The noise is
    estimated from the distances to the model and from the repetitions, and is itself uncertain.
    """
    random = np.random.default_rng(SEED)
    terms, _ = distinguishable_terms(measurements)
    fitted = predicted_seconds(formula, measurements)
    repeats = _repeatability(measurements)
    guess, freedom = _estimate_noise(formula, measurements)
    scale = np.minimum(guess * np.sqrt(freedom / random.chisquare(freedom, DRAWS)), MOST_NOISE)
    found = list(candidates(measurements).values())
    logs = _akaike(found, guess)
    weights = np.exp(logs - logs.max())
    picked = random.choice(len(found), DRAWS, p=weights / weights.sum())
    centres = np.stack([predicted_seconds(each, measurements) for each, _ in found], axis=1)[:, picked]
    sampled = centres / fitted[:, None] * np.exp(scale * random.standard_normal((len(measurements), DRAWS)))
    matrix = design_matrix(terms, measurements, formula.rows) / fitted[:, None]
    coefficients = nnls_many(matrix, sampled, most_terms(measurements))
    single = scale if repeats is None else np.full(DRAWS, min(repeats, MOST_NOISE))
    return FormulaDraws(tuple(terms), coefficients, np.exp(single * random.standard_normal(DRAWS)), formula.rows)


def _estimate_noise(formula: Formula, measurements: Sequence[Measurement]) -> tuple[float, int]:
    """Return the relative noise of a measurement around a formula and its degrees of freedom, first guess included."""
    first, repeats = UNTIL_KNOWN, _repeatability(measurements)
    if repeats is not None:  # what remains of it in the median of several runs
        runs = float(np.mean([len(each.runs) for each in measurements]))
        first = repeats * math.sqrt((math.pi / 2 if runs > 2 else 1.0) / runs)
    residuals = np.log(median_seconds(measurements) / predicted_seconds(formula, measurements))
    freedom = WEIGHT + max(len(residuals) - len(formula.terms), 0)
    squares = WEIGHT * first**2 + float(residuals @ residuals)
    return min(math.sqrt(squares / freedom), MOST_NOISE), freedom


def _repeatability(measurements: Sequence[Measurement]) -> float | None:
    """Return the standard deviation of the logarithms of repeated runs; None without repetitions."""
    squares, freedom = pooled_squares([[math.log(run) for run in each.runs] for each in measurements])
    return math.sqrt((squares + UNTIL_KNOWN**2) / (freedom + 1)) if freedom else None


RANK = 1e-8  # singular values below this part of the largest count as zero
SLACK = 1e-12  # relative differences that are due to rounding
ZERO = 1e-7  # parts of the measured time below which a term counts as zero
Fitted = dict[Columns, tuple[Array, float]]  # coefficients and sum of squared errors


def independent_columns(matrix: Array, most: int) -> list[Columns]:
    """Return the choices of at most `most` linearly independent columns, smaller ones first."""
    lengths = np.linalg.norm(matrix, axis=0)
    unit = matrix / np.where(lengths == 0, 1.0, lengths)
    sizes = range(1, min(*matrix.shape, most) + 1)
    choices = [columns for size in sizes for columns in combinations(range(matrix.shape[1]), size)]
    return [columns for columns in choices if np.linalg.matrix_rank(unit[:, columns], rtol=RANK) == len(columns)]


def nnls(matrix: Array, right: Array) -> tuple[Array, float]:
    """Return the non-negative least-squares coefficients of one right side, and the sum of squared errors.

    A coefficient that only rounding keeps from zero is zero, so that ties do not depend on the unit of time.
    """
    from scipy import optimize

    values, distance = optimize.nnls(matrix, right)
    contributions = values * np.abs(matrix).max(axis=0)
    return np.where(contributions > ZERO * np.abs(right).max(), values, 0.0), float(distance**2)


def nnls_many(matrix: Array, right: Array, most: int) -> Array:
    """Return the best non-negative coefficients with at most `most` other than zero, for each column of `right`.

    Every choice of columns is tried for all right sides at once, since scipy solves one at a time, which takes ten
    times as long for 1,000 draws. Among equally good choices the first of the fewest columns wins.
    """
    best = np.zeros((matrix.shape[1], right.shape[1]))
    smallest = np.sum(right**2, axis=0)
    for columns in independent_columns(matrix, most):
        chosen = matrix[:, columns]
        values = np.linalg.pinv(chosen) @ right
        error = np.sum((right - chosen @ values) ** 2, axis=0)
        valid = np.all(values >= -SLACK * np.abs(values).max(axis=0), axis=0)
        better = valid & (error < smallest - SLACK * np.maximum(smallest, 1.0))
        smallest = np.where(better, error, smallest)
        best[:, better] = 0.0
        best[np.ix_(columns, better)] = np.maximum(values[:, better], 0.0)
    return best
