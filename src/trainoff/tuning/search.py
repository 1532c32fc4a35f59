"""Which candidate to try next: a few obvious ones first, then Optuna's TPE, from nothing but what was tried.

A proposal depends only on the candidates tried so far and how they did. So a search needs no database: from the same
records it goes on in the same way, today or tomorrow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainoff.errors import TrainoffError
from trainoff.study import derive
from trainoff.tune.space import Candidate, Dimension, Space

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
