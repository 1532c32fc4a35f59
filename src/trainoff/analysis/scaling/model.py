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

    configs: tuple[Config, ...]
    mix: Mix
    spread: Spread
    grade: Grade
    remarks: tuple[str, ...] = ()  # what could not be told by these runs

    @property
    def terms(self) -> dict[str, float]:
        """The coefficient of each term, in seconds; of the largest number of rows that was measured."""
        return {term.name: value for term, value in zip(self.mix.terms, self.mix.coefficients, strict=True)}

    @property
    def counts(self) -> list[int]:
        """The node counts that it rests on."""
        return sorted({config.nodes for config in self.configs})

    @property
    def noise(self) -> float:
        """How far a measurement lies from the model, as a share."""
        return noise_of(self.mix, self.configs)

    def predict(self, nodes: int, rows: float | None = None) -> Estimate:
        """The seconds of a run with so many nodes; with the largest number of rows that was measured by default."""
        work = self.mix.rows if rows is None else rows
        middle = self.mix.seconds(nodes, work)
        low, high = self.spread.quantiles(nodes, work, LEVEL)
        room = math.exp(self.doubt(nodes))
        low, high = max(low, middle / FURTHEST), min(high, middle * FURTHEST)
        beyond = self._beyond(nodes, work)
        return Estimate(
            nodes, work, min(low, middle / room), middle, max(high, middle * room), beyond, self.grade.at(beyond)
        )

    def speed_up(self, nodes: int, rows: float | None = None) -> float:
        """How many times faster than one node."""
        return self.mix.seconds(1, rows) / self.mix.seconds(nodes, rows)

    def efficiency(self, nodes: int, rows: float | None = None) -> float:
        """The speed-up as a share of the nodes."""
        return self.speed_up(nodes, rows) / nodes

    def best(self) -> int:
        """The number of nodes with the shortest time, as far as is looked: 16 times the largest that was measured."""
        return min(range(1, self.horizon + 1), key=lambda nodes: (self.mix.seconds(nodes), nodes))

    def enough(self) -> int:
        """The fewest nodes that come within 10 % of the best time of any number."""
        least = self.mix.seconds(self.best())
        return next(n for n in range(1, self.horizon + 1) if self.mix.seconds(n) * (1 - NEAR) <= least)

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
        work = [config.rows for config in self.configs]
        return not (self.counts[0] <= nodes <= self.counts[-1] and min(work) <= rows <= max(work))


def fit(configs: Sequence[Config]) -> Fit:
    """Fit the model to runs with at least two numbers of nodes, or of rows; then only the rows may be asked for."""
    ordered = tuple(sorted(configs, key=lambda config: (config.nodes, config.rows)))
    if len({config.nodes for config in ordered}) < 2 and len({config.rows for config in ordered}) < 2:
        raise ValueError("a scaling model needs runs with at least two numbers of nodes, or of rows")
    mix = choose(ordered)
    return Fit(ordered, mix, spread(mix, ordered), grade(ordered), tuple(tellable(ordered)[1]))


def graded(model: Fit, unseen: Sequence[Config]) -> Fit:
    """The same model with its errors on runs that were kept from it."""
    return replace(model, grade=Grade(model.grade.left_out, errors(model.mix, unseen)))


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


Array = NDArray[np.float64]
PARALLEL = 1 - 1e-9  # a cosine above which two columns say the same


@dataclass(frozen=True)
class Term:
    """One part of the time: how it goes with the nodes, and with the work as a share of the largest that was run."""

    name: str
    words: str  # "31 s ..."
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
class Config:
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


def most_rows(configs: Sequence[Config]) -> float:
    """The largest work: the others are told as a share of it."""
    return max(config.rows for config in configs)


def design(terms: Sequence[Term], configs: Sequence[Config], rows: float) -> Array:
    """The matrix of what was run; `rows` is the largest work."""
    return matrix(terms, [config.nodes for config in configs], [config.rows / rows for config in configs])


def terms_of(configs: Sequence[Config], several_rows: bool) -> tuple[Term, ...]:
    """What the time of these configurations may be mixed of.

    What nodes say to each other they say in every step. Work that is not divided is a term of its own only where the
    rows differ; else it is the constant.
    """
    terms = FEWER_STEPS if any(config.grows for config in configs) else TERMS
    return (*terms, ROWS) if several_rows else terms


def tellable(configs: Sequence[Config]) -> tuple[list[Term], list[str]]:
    """The terms that these configurations can tell apart, and a sentence for each that they cannot."""
    terms = terms_of(configs, len({config.rows for config in configs}) > 1)
    columns = design(terms, configs, most_rows(configs))
    lengths = np.linalg.norm(columns, axis=0)
    dropped: dict[str, str] = {}
    for term, length in zip(terms, lengths, strict=True):
        if length == 0:
            dropped[term.name] = f"Seconds {term.words} cannot be seen on one node."
    for a, b in combinations(range(len(terms)), 2):
        gone = terms[a].name in dropped or terms[b].name in dropped
        if not gone and columns[:, a] @ columns[:, b] > PARALLEL * lengths[a] * lengths[b]:
            # What grows with every doubling would be nothing at all on one node: rather what grows with every node.
            one, other = (a, b) if terms[a] is LOG else (b, a)
            dropped[terms[one].name] = (
                f"Seconds {terms[one].words} cannot be told from those {terms[other].words} by these runs "
                "and are left out."
            )
    return [term for term in terms if term.name not in dropped], list(dropped.values())


HARDLY_WORSE = 2.0  # in logarithms of Akaike's weights: a seventh as likely as the likeliest


def rivals(fit: Fit, nodes: int, rows: float | None = None) -> tuple[float, float]:
    """The least and the most seconds with so many nodes by any mix that fits nearly as well, the chosen one included.

    Runs on a few nodes hardly tell what grows with every node from what grows with every doubling; far away the two
    part.
    """
    found = list(candidates(fit.configs).values())
    likely = [-rest / (2 * fit.noise**2) - len(mix.terms) for mix, rest in found]
    near = [mix for (mix, _), one in zip(found, likely, strict=True) if one >= max(likely) - HARDLY_WORSE]
    said = [mix.seconds(nodes, rows) for mix in (fit.mix, *near)]
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


def grade(configs: Sequence[Config]) -> Grade:
    """Leave out every node count in turn, choose and fit the terms anew, and predict it."""
    return Grade({left[0].nodes: _largest(errors(choose(kept), left).values()) for kept, left in folds(configs)})


def errors(mix: Mix, configs: Iterable[Config]) -> dict[tuple[int, float], float]:
    """How far predictions are off, by nodes and rows."""
    return {(one.nodes, one.rows): mix.seconds(one.nodes, one.rows) / one.seconds - 1 for one in configs}


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
