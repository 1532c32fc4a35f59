"""The float64 reference: gradients against finite differences, optimisers against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.training import make_job, pictures, reference
from trainoff.models import (
    ACTIVATIONS,
    Mlp,
    Weights,
    evaluate,
    flatten,
    initial_weights,
    logits,
    loss_and_gradient,
    make_optimizer,
    unflatten,
)

SIZES = [(5, 3), (5, 7, 3), (5, 6, 4, 3), (5, 6, 5, 4, 3)]


def numerical_gradient(model: Mlp, flat: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the loss by central differences of fourth order."""

    def loss(index: int, shift: float) -> float:
        moved = flat.copy()
        moved[index] += shift
        return loss_and_gradient(model, unflatten(model, moved), x, y)[0]

    h = 1e-4
    return np.array(
        [(8 * (loss(i, h) - loss(i, -h)) - (loss(i, 2 * h) - loss(i, -2 * h))) / (12 * h) for i in range(len(flat))]
    )


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_agrees_with_finite_differences(activation: str, l2: float, sizes: tuple[int, ...]) -> None:
    model = Mlp(sizes, activation, l2)
    rng = np.random.default_rng(3)
    flat = rng.standard_normal(model.parameter_count)  # biases are not zero, so that a mistake in them shows
    x, y = rng.standard_normal((6, 5)), rng.integers(0, 3, 6)
    _, gradient = loss_and_gradient(model, unflatten(model, flat), x, y)
    numerical = numerical_gradient(model, flat, x, y)
    assert np.linalg.norm(flatten(gradient) - numerical) < 1e-6 * np.linalg.norm(numerical)


def test_the_loss_of_zero_weights_is_that_of_guessing() -> None:
    model = Mlp((4, 3, 10))
    zeros = unflatten(model, np.zeros(model.parameter_count))
    loss, _ = loss_and_gradient(model, zeros, np.ones((2, 4)), np.array([0, 9]))
    assert loss == pytest.approx(np.log(10))


def test_l2_counts_the_matrices_and_not_the_biases() -> None:
    model = Mlp((1, 1), l2=0.5)
    loss, gradient = loss_and_gradient(model, [np.array([[3.0]]), np.array([7.0])], np.ones((1, 1)), np.array([0]))
    assert loss == pytest.approx(0.5 / 2 * 3.0**2)  # one class alone has no cross-entropy
    assert [float(part.item()) for part in gradient] == [1.5, 0.0]


def test_huge_scores_do_not_overflow() -> None:
    model = Mlp((1, 2, 2), "sigmoid")
    weights: Weights = [np.array([[1e4, -1e4]]), np.zeros(2), np.array([[1e4, 0], [0, 0.0]]), np.zeros(2)]
    with np.errstate(over="raise", invalid="raise"):
        loss, gradient = loss_and_gradient(model, weights, np.ones((1, 1)), np.array([1]))
    assert loss == pytest.approx(1e4)
    assert np.isfinite(flatten(gradient)).all()


def step_twice(name: str, gradients: list[float], momentum: float = 0.9) -> float:
    """Return a weight of 1 after steps with these gradients and learning rates of 0.1 and 0.2."""
    weights: Weights = [np.array([1.0])]
    optimizer = make_optimizer(name, weights, momentum)
    for gradient, rate in zip(gradients, (0.1, 0.2), strict=True):
        optimizer.step(weights, [np.array([gradient])], rate)
    return float(weights[0][0])


def test_sgd_by_hand() -> None:
    assert step_twice("sgd", [2.0, 3.0]) == pytest.approx(1 - 0.1 * 2 - 0.2 * 3)


def test_momentum_by_hand_keeps_the_rate_out_of_the_velocity() -> None:
    assert step_twice("momentum", [2.0, 3.0]) == pytest.approx(1 - 0.1 * 2 - 0.2 * (0.9 * 2 + 3))


def test_adam_by_hand() -> None:
    mean = (0.9 * 0.1 * 2 + 0.1 * 3) / (1 - 0.9**2)
    square = (0.999 * 0.001 * 4 + 0.001 * 9) / (1 - 0.999**2)
    assert step_twice("adam", [2.0, 3.0]) == pytest.approx(1 - 0.1 - 0.2 * mean / (square**0.5 + 1e-8), rel=1e-7)


def test_adam_adds_epsilon_outside_the_root() -> None:
    assert step_twice("adam", [1e-8, 1e-8]) == pytest.approx(1 - 0.1 / 2 - 0.2 / 2)


def test_the_trajectory_has_steps_1_and_20_and_does_not_change_the_initial_weights() -> None:
    job = make_job()
    before = flatten(job.weights)
    assert sorted(reference(job)) == [1, 20]
    assert np.array_equal(flatten(job.weights), before)


def test_the_trajectory_of_fewer_steps_has_the_last_one() -> None:
    assert sorted(reference(make_job(batch_size=110, epochs=2))) == [1, 6]
    assert sorted(reference(make_job(batch_size=330, epochs=1))) == [1]


def test_evaluate_agrees_with_the_reference_on_more_rows_than_one_chunk() -> None:
    data = pictures(rows=1500)
    model = Mlp((64, 16, 10), l2=0.1)
    weights = initial_weights(model, 1)
    quality = evaluate(model, weights, data.x_test, data.y_test)
    without_l2, _ = loss_and_gradient(Mlp((64, 16, 10)), weights, data.x_test, data.y_test)
    found = logits(model, weights, data.x_test).argmax(axis=1)
    assert quality["accuracy"] == pytest.approx(np.mean(found == data.y_test), abs=1e-3)
    assert quality["loss"] == pytest.approx(without_l2, rel=1e-5)
