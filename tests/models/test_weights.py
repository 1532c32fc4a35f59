"""The shapes of a network, its initial weights and their fingerprint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainoff.errors import TrainoffError
from trainoff.models import Mlp, fingerprint, flatten, initial_weights, make_optimizer, unflatten


def test_a_model_counts_its_parameters() -> None:
    model = Mlp((784, 800, 10))
    assert model.kind == "mlp"
    assert model.shapes == [(784, 800), (800,), (800, 10), (10,)]
    assert model.parameter_count == 784 * 800 + 800 + 800 * 10 + 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sizes": (784,)}, r"the model's sizes are \(784,\); give two or more whole numbers above zero"),
        ({"sizes": (784, 0, 10)}, "whole numbers above zero"),
        ({"sizes": (784, 1.5, 10)}, "whole numbers above zero"),
        ({"sizes": (4, 2), "activation": "rely"}, "`rely` is not an activation; use one of relu, sigmoid, tanh"),
        ({"sizes": (4, 2), "l2": -1.0}, "the model's l2 is -1.0; give zero or a positive number"),
        ({"sizes": (4, 2), "l2": float("nan")}, "the model's l2 is nan"),
    ],
)
def test_an_impossible_model_is_an_error(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainoffError, match=sentence):
        Mlp(**arguments)


def test_an_unknown_optimizer_is_an_error() -> None:
    with pytest.raises(TrainoffError, match="`sdg` is not an optimizer; use one of sgd, momentum, adam"):
        make_optimizer("sdg", [])


@pytest.mark.parametrize(("activation", "spread"), [("relu", 2 / 784), ("sigmoid", 2 / 1584), ("tanh", 2 / 1584)])
def test_initial_weights_have_the_published_spread(activation: str, spread: float) -> None:
    first, bias, *_ = initial_weights(Mlp((784, 800, 10), activation), seed=1)
    assert first.dtype == bias.dtype == np.float32
    assert first.std() == pytest.approx(spread**0.5, rel=0.01)
    assert abs(first.mean()) < 1e-3
    assert not bias.any()


def test_initial_weights_depend_on_the_seed_and_not_on_l2() -> None:
    first = fingerprint(initial_weights(Mlp((4, 3, 2)), seed=1))
    assert first == fingerprint(initial_weights(Mlp((4, 3, 2), l2=0.5), seed=1))
    assert first != fingerprint(initial_weights(Mlp((4, 3, 2)), seed=2))


def test_flatten_and_unflatten_are_inverse() -> None:
    model = Mlp((4, 3, 2))
    weights = initial_weights(model, 1)
    flat = flatten(weights)
    assert flat.dtype == np.float32
    assert all(np.array_equal(a, b) for a, b in zip(weights, unflatten(model, flat), strict=True))
    with pytest.raises(ValueError, match="expected a vector of 23 weights"):
        unflatten(model, flat[:-1])


def test_unflattened_weights_are_views_and_flattened_ones_a_copy() -> None:
    model = Mlp((4, 3, 2))
    flat = np.zeros(model.parameter_count)
    weights = unflatten(model, flat)
    flatten(weights)[:] = 5
    assert not flat.any()
    weights[0][0, 0] = 7
    assert flat[0] == 7


def test_the_fingerprint_depends_on_every_bit_of_the_float32_values() -> None:
    weights = initial_weights(Mlp((4, 3, 2)), 1)
    same = [part.astype(np.float64) for part in weights]
    assert fingerprint(weights) == fingerprint(same)
    same[-1][0] += 1e-30
    assert fingerprint(weights) != fingerprint(same)


def test_initial_weights_are_the_same_on_every_machine() -> None:
    # Pinned: a new way of drawing them would silently change every record.
    assert (
        fingerprint(initial_weights(Mlp((4, 3, 2)), 1))
        == "6e358ed7f428ec04e9825b72566729f6a24382646986463b8e9e68f2cf7d6bf2"
    )
