"""The convolutional network and logistic regression: shapes, and gradients by finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.training import clicks, make_job, pictures
from trainoff.errors import TrainoffError
from trainoff.models import (
    ACTIVATIONS,
    Cnn,
    Logreg,
    Mlp,
    Model,
    auc,
    evaluate,
    flatten,
    initial_weights,
    logits,
    loss_and_gradient,
    unflatten,
)


def perturbed(model: Model, seed: int = 3) -> list[np.ndarray]:
    """Return initial weights with noise, so that no bias is zero."""
    rng = np.random.default_rng(seed)
    return [part + rng.normal(0, 0.05, part.shape) for part in initial_weights(model, seed)]


def derivative(model: Model, weights: list[np.ndarray], x: object, y: np.ndarray, place: int) -> float:
    """Return the derivative of the loss by one weight, by central differences."""
    flat, step = flatten(weights), 1e-6
    values = []
    for sign in (1, -1):
        moved = flat.copy()
        moved[place] += sign * step
        values.append(loss_and_gradient(model, unflatten(model, moved), x, y)[0])
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("image", "channels", "kernel"), [((8, 8), (3,), 3), ((13, 12), (3, 4), 3), ((9, 6), (2,), 2)])
def test_the_gradient_of_a_cnn_agrees_with_finite_differences(
    image: tuple[int, int], channels: tuple[int, ...], kernel: int, activation: str, l2: float
) -> None:
    model = Cnn(image, channels, kernel, (5, 4), activation, l2)
    rng = np.random.default_rng(1)
    x, y = rng.uniform(size=(7, image[0] * image[1])), rng.integers(0, 4, 7)
    weights = perturbed(model)
    _, gradient = loss_and_gradient(model, weights, x, y)
    flat = flatten(gradient)
    for place in rng.choice(model.parameter_count, 40, replace=False):
        assert flat[place] == pytest.approx(derivative(model, weights, x, y, place), rel=1e-4, abs=1e-7)


def test_a_convolution_agrees_with_its_definition() -> None:
    model = Cnn((6, 5), (2,), 3, (3,), "tanh")
    weights, x = perturbed(model), np.random.default_rng(2).uniform(size=(2, 30))
    kernel, bias, matrix, last = weights
    expected = []
    for row in x.reshape(2, 6, 5):
        convolved = np.zeros((4, 3, 2))
        for i in range(4):
            for j in range(3):
                for channel in range(2):
                    convolved[i, j, channel] = np.sum(row[i : i + 3, j : j + 3] * kernel[:, :, 0, channel])
        active = np.tanh(convolved + bias)
        pooled = active[:, :2].reshape(2, 2, 1, 2, 2).max(axis=(1, 3))  # the odd last column is left out
        expected.append(pooled.reshape(-1) @ matrix + last)
    np.testing.assert_allclose(logits(model, weights, x), expected, rtol=1e-12)


def test_the_layers_of_a_cnn_and_their_number_of_products() -> None:
    model = Cnn((28, 28), (8, 16), 5, (64, 10))
    assert model.shapes == [(5, 5, 1, 8), (8,), (5, 5, 8, 16), (16,), (256, 64), (64,), (64, 10), (10,)]
    assert model.classes == 10
    assert model.products == 24 * 24 * 25 * 8 + 8 * 8 * 25 * 8 * 16 + 256 * 64 + 64 * 10


def test_a_picture_that_is_too_small_for_the_convolutions_is_refused() -> None:
    with pytest.raises(TrainoffError, match="pictures of 8 x 8 are used up by convolution 2 of 2 with a kernel of 5"):
        Cnn((8, 8), (4, 4), 5, (10,))


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_the_gradient_of_logistic_regression_agrees_with_finite_differences(l2: float) -> None:
    data = clicks()
    model = Logreg(500, l2=l2)
    x, y = data.x_train[40:90], data.y_train[40:90]  # a slice whose starts do not begin at 0
    weights = perturbed(model)
    _, gradient = loss_and_gradient(model, weights, x, y)
    flat = flatten(gradient)
    for place in [*np.unique(x.compact().columns)[:30], 499, 500]:
        assert flat[place] == pytest.approx(derivative(model, weights, x, y, place), rel=1e-4, abs=1e-8)


def test_logistic_regression_is_a_softmax_of_two_classes_on_the_dense_rows() -> None:
    data, model = clicks(), Logreg(500)
    weights = perturbed(model)
    dense = np.zeros(data.x_test.shape)
    rows = data.x_test.compact()
    np.add.at(dense, (rows.row_numbers(), rows.columns), rows.values)
    two = Mlp((500, 2))
    pair = [np.stack([np.zeros(500), weights[0]], axis=1), np.array([0, weights[1][0]])]
    sparse, same = evaluate(model, weights, data.x_test, data.y_test), evaluate(two, pair, dense, data.y_test)
    assert sparse == pytest.approx(same, rel=1e-5)
    np.testing.assert_array_equal(
        logits(model, weights, data.x_test).argmax(axis=1), logits(two, pair, dense).argmax(axis=1)
    )


def test_auc_agrees_with_scikit_learn_and_counts_ties_half() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(4)
    y = rng.integers(0, 2, 500)
    z = np.round(rng.normal(y, 1.5), 1)
    assert auc(z, y) == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    assert auc(np.zeros(500), y) == 0.5
    assert np.isnan(auc(z, np.ones(500, np.int64)))


def test_initial_weights_depend_on_the_seed_and_the_model() -> None:
    job = make_job(pictures(), kind="cnn")
    assert [part.shape for part in job.weights] == job.model.shapes
    other = initial_weights(job.model, 2)
    assert not np.array_equal(job.weights[0], other[0])
    assert all(not part.any() for part in initial_weights(Logreg(9), 1))
