"""A fitted scaling model: what it predicts, where it is best, what more nodes bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trainoff.analysis.statistics import LEVEL

FAR = 16  # times the largest measured node count: what is looked at for the best one
UNCHECKED = 0.2  # what each doubling beyond the measured widens an interval by, where nothing could be checked
FURTHEST = 10.0  # times the best guess and its tenth: an interval that goes further says no more
NEAR = 0.1  # what counts as hardly more


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run that nobody need have made: the best guess, what encloses it in 95 %, and its grade."""

    nodes: int
    rows: float
    low: float
    middle: float
    high: float
    extrapolated: bool
    error: float | None  # by how much such predictions were off where they could be checked; None: nowhere


@dataclass(frozen=True)
class Fit:
    """The scaling model of one engine in one setting."""

    measurements: tuple[Measurement, ...]
    formula: Formula
    spread: Spread
    grade: Grade
    remarks: tuple[str, ...] = ()  # what could not be told by these runs

    @property
    def terms(self) -> dict[str, float]:
        """The coefficient of each term, in seconds; of the largest number of rows that was measured."""
        return {term.name: value for term, value in zip(self.formula.terms, self.formula.coefficients, strict=True)}

    @property
    def counts(self) -> list[int]:
        """The node counts that it rests on."""
        return sorted({config.nodes for config in self.measurements})

    @property
    def noise(self) -> float:
        """How far a measurement lies from the model, as a share."""
        return noise_of(self.formula, self.measurements)

    def predict(self, nodes: int, rows: float | None = None) -> Estimate:
        """The seconds of a run with so many nodes; with the largest number of rows that was measured by default."""
        work = self.formula.rows if rows is None else rows
        middle = self.formula.seconds(nodes, work)
        low, high = self.spread.quantiles(nodes, work, LEVEL)
        room = math.exp(self.doubt(nodes))
        low, high = max(low, middle / FURTHEST), min(high, middle * FURTHEST)
        beyond = self._beyond(nodes, work)
        return Estimate(
            nodes, work, min(low, middle / room), middle, max(high, middle * room), beyond, self.grade.at(beyond)
        )

    def speed_up(self, nodes: int, rows: float | None = None) -> float:
        """How many times faster than one node."""
        return self.formula.seconds(1, rows) / self.formula.seconds(nodes, rows)

    def efficiency(self, nodes: int, rows: float | None = None) -> float:
        """The speed-up as a share of the nodes."""
        return self.speed_up(nodes, rows) / nodes

    def best(self) -> int:
        """The number of nodes with the shortest time, as far as is looked: 16 times the largest that was measured."""
        return min(range(1, self.horizon + 1), key=lambda nodes: (self.formula.seconds(nodes), nodes))

    def enough(self) -> int:
        """The fewest nodes that come within 10 % of the best time of any number."""
        least = self.formula.seconds(self.best())
        return next(n for n in range(1, self.horizon + 1) if self.formula.seconds(n) * (1 - NEAR) <= least)

    @property
    def horizon(self) -> int:
        return FAR * self.counts[-1]

    def doubt(self, nodes: int) -> float:
        """The least half width of an interval beyond the measured, in logarithms: what the model was off when checked.

        The further away, the more, in doublings: seen from 8, 32 nodes are twice as far as 8 from 4.
        """
        counts = self.counts
        if nodes <= counts[-1]:
            return 0.0
        if self.grade.beyond is None:
            return min(UNCHECKED * math.log2(nodes / counts[-1]), math.log(FURTHEST))
        steps = math.log(nodes / counts[-1]) / math.log(counts[-1] / counts[-2])
        return min(math.log1p(self.grade.beyond) * max(1.0, steps), math.log(FURTHEST))

    def _beyond(self, nodes: int, rows: float) -> bool:
        work = [config.rows for config in self.measurements]
        return not (self.counts[0] <= nodes <= self.counts[-1] and min(work) <= rows <= max(work))


def fit(measurements: Sequence[Measurement]) -> Fit:
    """Fit the model to runs with at least two numbers of nodes, or of rows; then only the rows may be asked for."""
    ordered = tuple(sorted(measurements, key=lambda config: (config.nodes, config.rows)))
    if len({config.nodes for config in ordered}) < 2 and len({config.rows for config in ordered}) < 2:
        raise ValueError("a scaling model needs runs with at least two numbers of nodes, or of rows")
    formula = choose(ordered)
    return Fit(ordered, formula, spread(formula, ordered), grade(ordered), tuple(tellable(ordered)[1]))


def graded(model: Fit, unseen: Sequence[Measurement]) -> Fit:
    """The same model with its errors on runs that were kept from it."""
    return replace(model, grade=Grade(model.grade.left_out, errors(model.formula, unseen)))


WORSE = 1.15  # so much more error a formula of fewer terms may have
NOTHING = 1e-9
NEGLIGIBLE = 0.01  # an error that nobody cares to make smaller


@dataclass(frozen=True)
class Formula:
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


def most_terms(measurements: Sequence[Measurement]) -> int:
    """One fewer than there are configurations, so that something is left to check by; of two, both."""
    return max(len(measurements) - 1, min(len(measurements), 2))


def solver_of(terms: Sequence[Term], measurements: Sequence[Measurement], scale: Array, rows: float) -> Solver:
    """A solver of what was measured in multiples of `scale`, so that a per cent is as much wherever it is."""
    return Solver(design_matrix(terms, measurements, rows) / scale[:, None], most_terms(measurements))


def measured(measurements: Sequence[Measurement]) -> Array:
    """The seconds of each configuration."""
    return np.array([config.seconds for config in measurements])


def candidates(measurements: Sequence[Measurement]) -> dict[Choice, tuple[Formula, float]]:
    """Return every formula without zero terms, by the columns of its terms, with its sum of squared relative errors."""
    terms, _ = tellable(measurements)
    rows = most_rows(measurements)
    found = solver_of(terms, measurements, measured(measurements), rows).each(np.ones(len(measurements)))
    return {
        chosen: (Formula(tuple(terms[place] for place in chosen), tuple(map(float, values[list(chosen)])), rows), rest)
        for chosen, (values, rest) in found.items()
        if np.all(values[list(chosen)] > 0) and not all(terms[place] in NOTHING_ALONE for place in chosen)
    }


def choose(measurements: Sequence[Measurement]) -> Formula:
    """The formula that predicts left-out node counts best, or one of fewer terms that is hardly worse."""
    found = candidates(measurements)
    errors = _left_out_errors(measurements, found)
    return found[_preferred(errors) if errors else _closest({chosen: rest for chosen, (_, rest) in found.items()})][0]


def folds(measurements: Sequence[Measurement]) -> list[tuple[list[Measurement], list[Measurement]]]:
    """What is kept and what is left out, node count by node count; nothing where too little would be kept."""
    counts = sorted({config.nodes for config in measurements})
    if len(counts) < 3:
        return []
    return [([c for c in measurements if c.nodes != n], [c for c in measurements if c.nodes == n]) for n in counts]


def _left_out_errors(measurements: Sequence[Measurement], choices: Iterable[Choice]) -> dict[Choice, float]:
    """For each choice of terms, how far it is off where it has not seen the measurements, as a share (quadratic mean).

    Where what is kept has too few node counts for a choice, it stands back.
    """
    (terms, _), rows = tellable(measurements), most_rows(measurements)
    squares: dict[Choice, list[float]] = {chosen: [] for chosen in choices}
    for kept, left in folds(measurements):
        found = solver_of(terms, kept, measured(kept), rows).each(np.ones(len(kept)))
        unseen, seconds = design_matrix(terms, left, rows), measured(left)
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


Array = NDArray[np.float64]
PARALLEL = 1 - 1e-9  # a cosine above which two columns say the same


@dataclass(frozen=True)
class Term:
    """One part of the time: how it goes with the nodes, and with the work as a share of the largest that was run."""

    name: str
    description: str  # "31 s ..."
    value: Callable[[Array, Array], Array]


WORK = Term("work", "divided among the nodes", lambda nodes, work: work / nodes)
CONSTANT = Term("constant", "constant", lambda nodes, work: np.ones_like(nodes))
LOG = Term("log", "for each doubling of the nodes", lambda nodes, work: np.log2(nodes))
TREE = Term("log", "for each doubling, divided too", lambda nodes, work: work * np.log2(nodes) / nodes)
NODES = Term("nodes", "for each node", lambda nodes, work: nodes)
ROWS = Term("rows", "that grow with the rows but are not divided", lambda nodes, work: work)
TERMS = (CONSTANT, WORK, LOG, NODES)  # in the order in which they are preferred
FEWER_STEPS = (CONSTANT, WORK, TREE, NODES)  # where batches grow with the nodes
NOTHING_ALONE = (LOG, TREE)  # on one node


@dataclass(frozen=True)
class Measurement:
    """One number of nodes and of rows, with the seconds of every run there."""

    nodes: int
    rows: float
    runs: tuple[float, ...]
    grows: bool = False  # whether batches grow with the nodes, so that there are fewer steps

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return float(np.median(self.runs))


def matrix(terms: Sequence[Term], nodes: Iterable[float], work: Iterable[float]) -> Array:
    """A row for each pair of nodes and work, a column for each term."""
    n, w = np.array([*nodes], dtype=float), np.array([*work], dtype=float)
    return np.stack([term.value(n, w) for term in terms], axis=1)


def most_rows(measurements: Sequence[Measurement]) -> float:
    """The largest work: the others are told as a share of it."""
    return max(config.rows for config in measurements)


def design_matrix(terms: Sequence[Term], measurements: Sequence[Measurement], rows: float) -> Array:
    """The matrix of what was run; `rows` is the largest work."""
    return matrix(terms, [config.nodes for config in measurements], [config.rows / rows for config in measurements])


def terms_of(measurements: Sequence[Measurement], several_rows: bool) -> tuple[Term, ...]:
    """What the time of these configurations may be mixed of.

    What nodes say to each other they say in every step. Work that is not divided is a term of its own only where the
    rows differ; else it is the constant.
    """
    terms = FEWER_STEPS if any(config.grows for config in measurements) else TERMS
    return (*terms, ROWS) if several_rows else terms


def tellable(measurements: Sequence[Measurement]) -> tuple[list[Term], list[str]]:
    """The terms that these configurations can tell apart, and a sentence for each that they cannot."""
    terms = terms_of(measurements, len({config.rows for config in measurements}) > 1)
    columns = design_matrix(terms, measurements, most_rows(measurements))
    lengths = np.linalg.norm(columns, axis=0)
    dropped: dict[str, str] = {}
    for term, length in zip(terms, lengths, strict=True):
        if length == 0:
            dropped[term.name] = f"Seconds {term.description} cannot be seen on one node."
    for a, b in combinations(range(len(terms)), 2):
        gone = terms[a].name in dropped or terms[b].name in dropped
        if not gone and columns[:, a] @ columns[:, b] > PARALLEL * lengths[a] * lengths[b]:
            # What grows with every doubling would be nothing at all on one node: rather what grows with every node.
            one, other = (a, b) if terms[a] is LOG else (b, a)
            dropped[terms[one].name] = (
                f"Seconds {terms[one].description} cannot be told from those {terms[other].description} by these runs "
                "and are left out."
            )
    return [term for term in terms if term.name not in dropped], list(dropped.values())


HARDLY_WORSE = 2.0  # in logarithms of Akaike's weights: a seventh as likely as the likeliest


def alternative_range(fit: Fit, nodes: int, rows: float | None = None) -> tuple[float, float]:
    """Return the smallest and largest prediction by any formula that fits nearly as well, the chosen one included.

    Runs on a few nodes hardly tell what grows with every node from what grows with every doubling; far away the two
    part.
    """
    found = list(candidates(fit.measurements).values())
    likely = [-rest / (2 * fit.noise**2) - len(formula.terms) for formula, rest in found]
    near = [formula for (formula, _), one in zip(found, likely, strict=True) if one >= max(likely) - HARDLY_WORSE]
    said = [formula.seconds(nodes, rows) for formula in (fit.formula, *near)]
    return min(said), max(said)


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


def grade(measurements: Sequence[Measurement]) -> Grade:
    """Leave out every node count in turn, choose and fit the terms anew, and predict it."""
    return Grade({left[0].nodes: _largest(errors(choose(kept), left).values()) for kept, left in folds(measurements)})


def errors(formula: Formula, measurements: Iterable[Measurement]) -> dict[tuple[int, float], float]:
    """How far predictions are off, by nodes and rows."""
    return {(one.nodes, one.rows): formula.seconds(one.nodes, one.rows) / one.seconds - 1 for one in measurements}


def _largest(values: Iterable[float]) -> float:
    """The error that is furthest from none."""
    return max(values, key=abs)


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


def spread(formula: Formula, measurements: Sequence[Measurement]) -> Spread:
    """Draw measurements around every formula of terms that could be true, and fit each drawing anew.

    So it holds what noise does to the coefficients, and that other terms might have been the right ones. How strong
    the noise is comes from the distances to the model and from the repetitions, and is itself uncertain.
    """
    random = np.random.default_rng(SEED)
    terms, _ = tellable(measurements)
    fitted = _seconds(formula, measurements)
    repeats = _repeatability(measurements)
    first = _share_of_median(measurements, repeats)
    scale = _noise(random, np.log(measured(measurements) / fitted), len(formula.terms), first)
    centres = _centres(random, measurements, noise_of(formula, measurements))
    made = centres / fitted[:, None] * np.exp(scale * random.standard_normal((len(measurements), DRAWS)))
    coefficients = solver_of(terms, measurements, fitted, formula.rows).solve(made)
    single = scale if repeats is None else np.full(DRAWS, min(repeats, MOST_NOISE))
    return Spread(tuple(terms), coefficients, np.exp(single * random.standard_normal(DRAWS)), formula.rows)


def _seconds(formula: Formula, measurements: Sequence[Measurement]) -> Array:
    return np.array([formula.seconds(config.nodes, config.rows) for config in measurements])


def _centres(random: np.random.Generator, measurements: Sequence[Measurement], noise: float) -> Array:
    """For each draw the times by one of the mixes that could be true, as often as Akaike's weights say."""
    found = list(candidates(measurements).values())
    logs = np.array([-rest / (2 * noise**2) - len(formula.terms) for formula, rest in found])
    weights = np.exp(logs - logs.max())
    picked = random.choice(len(found), DRAWS, p=weights / weights.sum())
    return np.stack([_seconds(formula, measurements) for formula, _ in found], axis=1)[:, picked]


def noise_of(formula: Formula, measurements: Sequence[Measurement]) -> float:
    """The best guess of the noise at one configuration, as a share."""
    off = np.log(measured(measurements) / _seconds(formula, measurements))
    return _guess(off, len(formula.terms), _share_of_median(measurements, _repeatability(measurements)))[0]


def _guess(off: Array, terms: int, first: float) -> tuple[float, int]:
    """The noise and how many measurements it rests on, the first guess among them."""
    freedom = max(len(off) - terms, 0)
    squares = WEIGHT * first**2 + float(off @ off)
    return min(math.sqrt(squares / (WEIGHT + freedom)), MOST_NOISE), WEIGHT + freedom


def _noise(random: np.random.Generator, off: Array, terms: int, first: float) -> Array:
    """Strengths of noise that suit these distances from the model, as likely as they are."""
    guess, freedom = _guess(off, terms, first)
    return np.minimum(guess * np.sqrt(freedom / random.chisquare(freedom, DRAWS)), MOST_NOISE)


def _repeatability(measurements: Sequence[Measurement]) -> float | None:
    """How far runs of one configuration lie apart (standard deviation of logarithms); None without repetitions."""
    squares, freedom = 0.0, 0
    for config in measurements:
        logs = np.log(config.runs)
        squares += float(np.sum((logs - logs.mean()) ** 2))
        freedom += len(logs) - 1
    return math.sqrt((squares + UNTIL_KNOWN**2) / (freedom + 1)) if freedom else None


def _share_of_median(measurements: Sequence[Measurement], repeats: float | None) -> float:
    """What of that is left in the median of a configuration's runs."""
    if repeats is None:
        return UNTIL_KNOWN
    runs = float(np.mean([len(config.runs) for config in measurements]))
    return repeats * math.sqrt((math.pi / 2 if runs > 2 else 1.0) / runs)


RANK = 1e-8  # singular values below this part of the largest, of columns of length one, are none
SLACK = 1e-12  # differences relative to the whole that are rounding
Choice = tuple[int, ...]  # columns


class Solver:
    """The non-negative least squares of one matrix, for as many right sides as wanted at once.

    The solution is the best among the plain least squares of all choices of columns that have no negative coefficient.
    Choices of columns that cannot be told apart, or of more than `most`, are left out.
    """

    def __init__(self, matrix: Array, most: int | None = None) -> None:
        self._matrix = matrix
        self._width = matrix.shape[1]
        most = min(*matrix.shape, most or self._width)
        self._inverses: dict[Choice, Array] = {}
        for size in range(1, most + 1):
            self._inverses |= _inverses(matrix, list(combinations(range(self._width), size)))

    def solve(self, right: Array) -> Array:
        """Coefficients for each right side (a column of `right`), a row for each column of the matrix."""
        best = np.zeros((self._width, right.shape[1]))
        least = np.sum(right**2, axis=0)
        for chosen, inverse in self._inverses.items():
            found, rest, good = self._plain(chosen, inverse, right)
            better = good & (rest < least - SLACK * np.maximum(least, 1.0))
            least = np.where(better, rest, least)
            best[:, better] = 0.0
            for column, values in zip(chosen, found, strict=True):
                best[column, better] = values[better]
        return best

    def each(self, right: Array) -> dict[Choice, tuple[Array, float]]:
        """For one right side the best coefficients within each choice of columns, and their sum of squares."""
        zero = (np.zeros(self._width), float(right @ right))
        found: dict[Choice, tuple[Array, float]] = {}
        for chosen, inverse in self._inverses.items():
            values, rest, good = self._plain(chosen, inverse, right[:, None])
            if good[0]:
                whole = np.zeros(self._width)
                whole[list(chosen)] = values[:, 0]
                found[chosen] = (whole, float(rest[0]))
            else:  # then the best lies where one of these is zero
                fewer = [found.get(part, zero) for part in combinations(chosen, len(chosen) - 1)]
                found[chosen] = min(fewer, default=zero, key=lambda one: one[1])
        return found

    def _plain(self, chosen: Choice, inverse: Array, right: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Least squares within a choice: coefficients, sums of squares, and where no coefficient is negative."""
        found = inverse @ right
        rest = np.sum((right - self._matrix[:, chosen] @ found) ** 2, axis=0)
        return np.maximum(found, 0.0), rest, np.all(found >= -SLACK * np.abs(found).max(axis=0), axis=0)


def nnls(matrix: Array, right: Array) -> Array:
    """The non-negative coefficients that come closest to one right side."""
    return Solver(matrix).solve(right[:, None])[:, 0]


def _inverses(matrix: Array, choices: list[Choice]) -> dict[Choice, Array]:
    """What turns a right side into coefficients, for each choice (all of one size) that can be told apart."""
    stacked = np.stack([matrix[:, chosen] for chosen in choices])
    lengths = np.linalg.norm(stacked, axis=1, keepdims=True)
    lengths[lengths == 0] = 1.0
    left, values, right = np.linalg.svd(stacked / lengths, full_matrices=False)
    apart = values[:, -1] >= RANK * np.maximum(values[:, 0], 1.0)
    inverses = np.swapaxes(right, 1, 2) / np.where(values, values, 1.0)[:, None, :] @ np.swapaxes(left, 1, 2)
    inverses = inverses / np.swapaxes(lengths, 1, 2)
    return {chosen: inverse for chosen, inverse, good in zip(choices, inverses, apart, strict=True) if good}
