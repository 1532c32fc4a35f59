"""The search space of an engine, and the next candidate to try: a few obvious ones first, then Optuna's TPE.

A proposal depends only on the candidates tried so far and their results. So a search needs no database: from the same
records it continues in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainoff.engines import Engine, Knob
from trainoff.errors import TrainoffError
from trainoff.study import PARAMS, Trial, derive

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as OptunaTrial

STARTUP_TRIALS = 8  # random candidates before TPE models the results
MAX_REPEATS = 40  # proposals in a row that were tried already: then the space is exhausted


@dataclass(frozen=True)
class Tried:
    """A candidate and its score: the smaller, the better."""

    candidate: Candidate
    badness: float


def check_optuna() -> None:
    """Raise an error that says how to install Optuna if it is missing."""
    if find_spec("optuna") is None:
        raise TrainoffError("tuning needs Optuna, which is not installed; run: pip install 'trainoff[tune]'")


def propose(space: Space, tried: Sequence[Tried], seed: int) -> Candidate | None:
    """Return the next candidate; None if the space is exhausted."""
    known = [space.changes(each.candidate) for each in tried]
    for candidate in _first_candidates(space):
        if candidate not in known:
            return candidate
    for attempt in range(MAX_REPEATS):
        candidate = _sample(space, tried, derive("tune", seed, len(tried), attempt) % 2**32)
        if candidate not in known:
            return candidate
    return None


def _first_candidates(space: Space) -> Iterator[Candidate]:
    """Yield the recipe, and what an expert would try first: fewer epochs, larger steps, other batches."""
    moves: list[dict[str, float]] = [
        {},
        {"epochs": 0.5},
        {"learning_rate": 2.0},
        {"epochs": 0.5, "learning_rate": 2.0},
        {"batch_size": 0.5, "epochs": 0.5},
        {"batch_size": 2.0, "learning_rate": 1.5},
    ]
    for move in moves:
        candidate = {key: _times(space.recipe[key], factor) for key, factor in move.items() if key in space.recipe}
        if len(candidate) == len(move) and space.points(space.full(candidate)) is not None:
            yield space.changes(space.full(candidate))


def _times(value: float, factor: float) -> float:
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def _sample(space: Space, tried: Sequence[Tried], seed: int) -> Candidate:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate=True
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True)
    study = optuna.create_study(sampler=sampler)
    known = {each.name: _distribution(each) for each in space.dimensions}
    for each in tried:
        points = space.points(space.full(each.candidate))
        if points is not None:
            used = {name: known[name] for name in points}
            study.add_trial(optuna.create_trial(params=points, distributions=used, value=each.badness))
    return space.changes(_values(space, study.ask()))


def _values(space: Space, trial: OptunaTrial) -> dict[str, Any]:
    """Sample the optimizer first: the other dimensions depend on it."""
    values: dict[str, Any] = {}
    for each in sorted(space.dimensions, key=lambda each: each.key != "optimizer"):
        if each.of in (None, values.get("optimizer")):
            values[each.key] = each.value(_suggest(trial, each))
    return values


def _suggest(trial: OptunaTrial, each: Dimension) -> Any:
    if each.choices:
        return trial.suggest_categorical(each.name, each.choices)
    if each.whole:
        return trial.suggest_int(each.name, round(each.low), round(each.high), log=each.log)
    return trial.suggest_float(each.name, each.low, each.high, log=each.log)


def _distribution(each: Dimension) -> BaseDistribution:
    from optuna import distributions

    if each.choices:
        return distributions.CategoricalDistribution(each.choices)
    if each.whole:
        return distributions.IntDistribution(round(each.low), round(each.high), log=each.log)
    return distributions.FloatDistribution(each.low, each.high, log=each.log)


Candidate = Mapping[str, Any]  # values for [engine.NAME]; empty: the recipe
OPTIMIZERS = ("sgd", "momentum", "adam")
USUAL_RATES = {"sgd": 0.3, "momentum": 0.1, "adam": 0.003}  # for another optimizer than the recipe's
RATE_FACTOR = 10.0  # how far a learning rate may be from the recipe's, up and down
WHOLE_FACTOR = 4  # the same for whole numbers
DOUBLINGS = 3  # how often a batch may be doubled or halved
NOT_TUNED = (  # knobs of placement, display or safety
    "device",
    "precision",
    "dashboard",
    "tensorboard",
    "storage",
    "format",
    "protocol",
    "checkpoint_every",
    "backup_workers",
    "candidates",
    "chunk",
)


@dataclass(frozen=True)
class Dimension:
    """A key and its possible values: `choices`, or a range from `low` to `high`."""

    key: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    whole: bool = False  # whole numbers only
    log: bool = True
    base: int = 0  # if it is set, the values are this number times 2 ** low to 2 ** high
    of: str | None = None  # the optimizer to which it applies; None: to each

    @property
    def name(self) -> str:
        """The name in Optuna: the learning rate of Adam is another dimension than that of sgd."""
        return f"{self.key} of {self.of}" if self.of else self.key

    def value(self, point: Any) -> Any:
        """Return the value in the study file for a point of the search; a rate has three digits."""
        if self.base:
            return round(self.base * 2**point)
        if self.choices or self.whole:
            return point
        return min(self.high, max(self.low, float(f"{point:.3g}")))

    def point(self, value: Any) -> Any:
        """Return the point of the search for a value; None if the value is outside the space."""
        if self.base:
            powers = range(round(self.low), round(self.high) + 1)
            return next((power for power in powers if round(self.base * 2**power) == value), None)
        if self.choices:
            return value if value in self.choices else None
        return value if value is not None and self.low <= value <= self.high else None


@dataclass(frozen=True)
class Space:
    """All dimensions of the search of one engine."""

    dimensions: Sequence[Dimension]
    recipe: Mapping[str, Any]  # the recipe's value of each key

    def active(self, candidate: Candidate) -> Iterator[Dimension]:
        """Return the dimensions that apply to a candidate's optimizer."""
        optimizer = candidate.get("optimizer", self.recipe.get("optimizer"))
        return (each for each in self.dimensions if each.of in (None, optimizer))

    def full(self, candidate: Candidate) -> dict[str, Any]:
        """Return a candidate with the recipe's values for all other keys."""
        return {each.key: candidate.get(each.key, self.recipe[each.key]) for each in self.active(candidate)}

    def points(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a candidate's point in every dimension; None if it lies outside the space."""
        found = {each.name: each.point(values.get(each.key)) for each in self.active(values)}
        return None if None in found.values() else found

    def changes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that differ from the recipe, of keys that apply."""
        known = {each.key for each in self.active(values)}
        return {key: value for key, value in values.items() if key in known and value != self.recipe[key]}


def space_of(
    engine: Engine, recipe: Trial, values: Mapping[str, Any], rows: int, has_effect: Callable[[str, Any], bool]
) -> Space:
    """Return the space around a recipe; `values` are those of the study file, before the engine settles them.

    `has_effect(key, value)` tells whether another value of a key changes the trial; keys that the study sweeps or the
    command line sets have no effect.
    """
    known = [each for each in engine.optimizers(recipe.model) if each in OPTIMIZERS]
    used = recipe.params["optimizer"]
    free = [each for each in known if each == used or has_effect("optimizer", each)] if used in known else [used]
    dimensions = [*_of_training(recipe, values, rows, free), *_of_knobs(engine, values)]
    kept = []
    for one in dimensions:
        ends = one.choices or (one.value(one.low), one.value(one.high))
        if any(has_effect(one.key, end) for end in ends if end != values[one.key]):
            kept.append(one)
    return Space(kept, {each.key: values[each.key] for each in kept})


def _of_training(recipe: Trial, values: Mapping[str, Any], rows: int, optimizers: Sequence[str]) -> Iterator[Dimension]:
    yield _whole("epochs", values["epochs"], 1, 2)
    used = recipe.params["optimizer"]
    if used not in OPTIMIZERS:  # a full-batch method, which has no learning rate
        return
    several = len(optimizers) > 1
    yield Dimension("optimizer", choices=tuple(optimizers))
    for optimizer in optimizers:
        centre = values["learning_rate"] if optimizer == used else _usual(optimizer, used, values)
        high = min(centre * RATE_FACTOR, PARAMS["learning_rate"].maximum)
        yield Dimension("learning_rate", centre / RATE_FACTOR, high, of=optimizer if several else None)
    if "momentum" in optimizers:
        low, high = min(0.5, values["momentum"]), max(0.98, values["momentum"])
        yield Dimension("momentum", low, high, log=False, of="momentum" if several else None)
    yield Dimension("schedule", choices=PARAMS["schedule"].choices)
    batch = values["batch_size"]
    powers = [power for power in range(-DOUBLINGS, DOUBLINGS + 1) if recipe.workers <= batch * 2.0**power <= rows]
    if powers:
        yield Dimension("batch_size", min(*powers, 0), max(*powers, 0), whole=True, log=False, base=batch)


def _usual(optimizer: str, used: str, values: Mapping[str, Any]) -> float:
    """Return a learning rate to start from for another optimizer; Adam's are on another scale."""
    if "adam" in (optimizer, used):
        return USUAL_RATES[optimizer]
    return USUAL_RATES[optimizer] * float(values["learning_rate"]) / USUAL_RATES[used]


def _of_knobs(engine: Engine, values: Mapping[str, Any]) -> Iterator[Dimension]:
    for name, knob in engine.knobs.items():
        tuned = name not in NOT_TUNED and name in values and name not in PARAMS
        if tuned and (dimension := _of_knob(name, knob, values[name])):
            yield dimension


def _of_knob(name: str, knob: Knob, value: Any) -> Dimension | None:
    if knob.choices or knob.kind is bool:
        return Dimension(name, choices=knob.choices or (False, True))
    if value is None or isinstance(value, str) or value <= 0:
        return None
    if knob.kind is int:
        return _whole(name, value, round(knob.minimum or 1), WHOLE_FACTOR)
    return Dimension(name, max(value / 100, knob.minimum or 0.0), value * 100)


def _whole(name: str, value: int, least: int, most: int) -> Dimension:
    return Dimension(name, max(least, 1, value // WHOLE_FACTOR), value * most, whole=True)
