"""Which candidate to try next: a few obvious ones first, then Optuna's TPE, from nothing but what was tried.

A proposal depends only on the candidates tried so far and how they did. So a search needs no database: from the same
records it goes on in the same way, today or tomorrow.
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
    from optuna.trial import Trial as Asked


AT_RANDOM = 8  # candidates before the search models what it has seen
TRIES = 40  # proposals in a row that are known already: then there is nothing left to try


@dataclass(frozen=True)
class Tried:
    """A candidate and how it did: the smaller, the better."""

    candidate: Candidate
    badness: float


def check_optuna() -> None:
    """Say how to install Optuna where it is missing."""
    if find_spec("optuna") is None:
        raise TrainoffError("tuning needs Optuna, which is not installed; run: pip install 'trainoff[tune]'")


def propose(space: Space, tried: Sequence[Tried], seed: int) -> Candidate | None:
    """The next candidate; None if every one that comes to mind was tried."""
    known = [space.changes(each.candidate) for each in tried]
    for candidate in first_moves(space):
        if candidate not in known:
            return candidate
    for attempt in range(TRIES):
        candidate = _ask(space, tried, derive("tune", seed, len(tried), attempt) % 2**32)
        if candidate not in known:
            return candidate
    return None


def first_moves(space: Space) -> Iterator[Candidate]:
    """The recipe, and what a person would try first: fewer epochs, larger steps, larger and smaller batches."""
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


def _ask(space: Space, tried: Sequence[Tried], seed: int) -> Candidate:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate: long so, and unchanged
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=AT_RANDOM, multivariate=True, group=True)
    study = optuna.create_study(sampler=sampler)
    distributions = {each.name: _distribution(each) for each in space.dimensions}
    for each in tried:
        points = space.points(space.full(each.candidate))
        if points is not None:
            used = {name: distributions[name] for name in points}
            study.add_trial(optuna.create_trial(params=points, distributions=used, value=each.badness))
    return space.changes(_values(space, study.ask()))


def _values(space: Space, asked: Asked) -> dict[str, Any]:
    """Ask for the optimizer first: what else there is to ask depends on it."""
    values: dict[str, Any] = {}
    for each in sorted(space.dimensions, key=lambda each: each.key != "optimizer"):
        if each.of in (None, values.get("optimizer")):
            values[each.key] = each.value(_suggest(asked, each))
    return values


def _suggest(asked: Asked, each: Dimension) -> Any:
    if each.choices:
        return asked.suggest_categorical(each.name, each.choices)
    if each.whole:
        return asked.suggest_int(each.name, round(each.low), round(each.high), log=each.log)
    return asked.suggest_float(each.name, each.low, each.high, log=each.log)


def _distribution(each: Dimension) -> BaseDistribution:
    from optuna import distributions as of

    if each.choices:
        return of.CategoricalDistribution(each.choices)
    if each.whole:
        return of.IntDistribution(round(each.low), round(each.high), log=each.log)
    return of.FloatDistribution(each.low, each.high, log=each.log)


Candidate = Mapping[str, Any]  # what would stand in [engine.NAME]; nothing: the recipe
OPTIMIZERS = ("sgd", "momentum", "adam")
RATE = {"sgd": 0.3, "momentum": 0.1, "adam": 0.003}  # usual rates, where the recipe has another optimizer
WIDE = 10.0  # how many times larger and smaller than the recipe's a rate may be
NEAR = 4  # the same of whole numbers
DOUBLINGS = 3  # how often a batch may be doubled or halved
NOT_SPEED = (  # knobs that say where something runs, what is shown or what is safe, and not how it learns
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
    """One key and the values it may take: some `choices`, or all from `low` to `high`."""

    key: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    whole: bool = False  # whole numbers only
    log: bool = True
    base: int = 0  # where it is set: the values are this number times 2 ** low to 2 ** high
    of: str | None = None  # the optimizer for which it says something; None: for each

    @property
    def name(self) -> str:
        """As the search knows it: a rate of Adam's is another dimension than one of sgd."""
        return f"{self.key} of {self.of}" if self.of else self.key

    def value(self, found: Any) -> Any:
        """What stands in the study file for a point of the search: three digits are enough of a rate."""
        if self.base:
            return round(self.base * 2**found)
        if self.choices or self.whole:
            return found
        return min(self.high, max(self.low, float(f"{found:.3g}")))

    def point(self, value: Any) -> Any:
        """The point of the search for a value; None where it is not among those that are searched."""
        if self.base:
            return next((power for power in self.powers if round(self.base * 2**power) == value), None)
        if self.choices:
            return value if value in self.choices else None
        return value if value is not None and self.low <= value <= self.high else None

    @property
    def powers(self) -> range:
        """The doublings of the base."""
        return range(round(self.low), round(self.high) + 1)


@dataclass(frozen=True)
class Space:
    """All dimensions of one engine's search."""

    dimensions: Sequence[Dimension]
    recipe: Mapping[str, Any]  # the value of each key that the recipe has

    def active(self, candidate: Candidate) -> Iterator[Dimension]:
        """The dimensions that say something about a candidate."""
        optimizer = candidate.get("optimizer", self.recipe.get("optimizer"))
        return (each for each in self.dimensions if each.of in (None, optimizer))

    def full(self, candidate: Candidate) -> dict[str, Any]:
        """A candidate with the recipe's values where it says nothing."""
        return {each.key: candidate.get(each.key, self.recipe[each.key]) for each in self.active(candidate)}

    def points(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """A candidate as the search knows it; None if it lies outside."""
        found = {each.name: each.point(values.get(each.key)) for each in self.active(values)}
        return None if None in found.values() else found

    def changes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Only what differs from the recipe, of keys that say something."""
        known = {each.key for each in self.active(values)}
        return {key: value for key, value in values.items() if key in known and value != self.recipe[key]}


def space_of(
    engine: Engine, recipe: Trial, asked: Mapping[str, Any], rows: int, matters: Callable[[str, Any], bool]
) -> Space:
    """The space around a recipe. `asked` is what its keys say before the engine settles them.

    `matters(key, value)` tells whether anything would be different if a key had another value; of one that the study
    sweeps or the command line sets, nothing would.
    """
    known = [each for each in engine.optimizers(recipe.model) if each in OPTIMIZERS]
    used = recipe.params["optimizer"]
    free = [each for each in known if each == used or matters("optimizer", each)] if used in known else [used]
    found = [*_of_training(recipe, asked, rows, free), *_of_knobs(engine, asked)]
    kept = [each for each in found if any(matters(each.key, value) for value in _others(each, asked[each.key]))]
    return Space(kept, {each.key: asked[each.key] for each in kept})


def _others(dimension: Dimension, value: Any) -> Iterator[Any]:
    ends = dimension.choices or (dimension.value(dimension.low), dimension.value(dimension.high))
    return (end for end in ends if end != value)


def _of_training(recipe: Trial, asked: Mapping[str, Any], rows: int, optimizers: Sequence[str]) -> Iterator[Dimension]:
    yield _whole("epochs", asked["epochs"], 1, 2)
    used = recipe.params["optimizer"]
    if used not in OPTIMIZERS:  # one that looks at all rows and finds its own step
        return
    several = len(optimizers) > 1
    yield Dimension("optimizer", choices=tuple(optimizers))
    for optimizer in optimizers:
        centre = asked["learning_rate"] if optimizer == used else _usual(optimizer, used, asked)
        high = min(centre * WIDE, PARAMS["learning_rate"].maximum)
        yield Dimension("learning_rate", centre / WIDE, high, of=optimizer if several else None)
    if "momentum" in optimizers:
        low, high = min(0.5, asked["momentum"]), max(0.98, asked["momentum"])
        yield Dimension("momentum", low, high, log=False, of="momentum" if several else None)
    yield Dimension("schedule", choices=PARAMS["schedule"].choices)
    batch = asked["batch_size"]
    powers = [power for power in range(-DOUBLINGS, DOUBLINGS + 1) if recipe.workers <= batch * 2.0**power <= rows]
    if powers:
        yield Dimension("batch_size", min(*powers, 0), max(*powers, 0), whole=True, log=False, base=batch)


def _usual(optimizer: str, used: str, asked: Mapping[str, Any]) -> float:
    """A rate to begin with for another optimizer than the recipe's; Adam's rates and the others' are worlds apart."""
    if "adam" in (optimizer, used):
        return RATE[optimizer]
    return RATE[optimizer] * float(asked["learning_rate"]) / RATE[used]


def _of_knobs(engine: Engine, asked: Mapping[str, Any]) -> Iterator[Dimension]:
    for name, knob in engine.knobs.items():
        if name not in NOT_SPEED and name in asked and name not in PARAMS:
            found = _of_knob(name, knob, asked[name])
            if found:
                yield found


def _of_knob(name: str, knob: Knob, value: Any) -> Dimension | None:
    if knob.choices or knob.kind is bool:
        return Dimension(name, choices=knob.choices or (False, True))
    if value is None or isinstance(value, str) or value <= 0:
        return None
    if knob.kind is int:
        return _whole(name, value, round(knob.minimum or 1), NEAR)
    return Dimension(name, max(value / 100, knob.minimum or 0.0), value * 100)


def _whole(name: str, value: int, least: int, most: int) -> Dimension:
    return Dimension(name, max(least, 1, value // NEAR), value * most, whole=True)
