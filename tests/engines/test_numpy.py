"""The numpy engine against the reference, also with mistakes put into it on purpose; L-BFGS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, distances, make_job, train
from trainoff.engines.contract import Job
from trainoff.engines.numpy import Numpy, NumpyLogistic, NumpyNetwork
from trainoff.models import SCHEDULES, flatten, logits, loss_and_gradient, unflatten

EXACT, TOLERATED = 1e-3, 5e-3


class ScaledGradient(NumpyNetwork):
    """A network whose gradient is 1 % too large."""

    def differentiate(self, x: Any, y: Any, rows: Any) -> float:
        loss = super().differentiate(x, y, rows)
        self.flat_gradient *= 1.01
        return loss


class LostRow(NumpyNetwork):
    """A network that loses the last row of every batch."""

    def differentiate(self, x: Any, y: Any, rows: Any) -> float:
        return super().differentiate(x, y, rows[:-1])


class WithNetwork(Numpy):
    """The engine with another network."""

    def __init__(self, network: type[NumpyNetwork]) -> None:
        self._kind = network

    def open(self, job: Job, watch: Any) -> None:
        super().open(job, watch)
        self._learner.network = self._kind(job.model, job.weights, job.order.batch_size)


def test_the_engine_with_a_replaced_network_is_exact_with_the_right_one() -> None:
    job = make_job()
    assert max(distances(job, train(WithNetwork(NumpyNetwork), job)).values()) <= EXACT


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, schedule: str) -> None:
    job = make_job(optimizer=optimizer, schedule=schedule)
    assert max(distances(job, train(WithNetwork(ScaledGradient), job)).values()) > TOLERATED


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_lost_row_is_noticed(optimizer: str, schedule: str) -> None:
    job = make_job(optimizer=optimizer, schedule=schedule)
    assert max(distances(job, train(WithNetwork(LostRow), job)).values()) > TOLERATED


def test_its_logistic_regression_predicts_like_the_reference() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0, epochs=20)
    engine = Numpy()
    weights = train(engine, job).snapshots[-1][2]
    found = engine.predict(job.data.x_test)
    np.testing.assert_array_equal(found, logits(job.model, weights, job.data.x_test).argmax(axis=1))
    assert np.mean(engine.predict(job.data.x_train) == job.data.y_train) > 0.8


def test_a_gradient_off_by_one_per_cent_is_noticed_on_sparse_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = NumpyLogistic.step
    monkeypatch.setattr(NumpyLogistic, "step", lambda self, step, rows, rate: correct(self, step, rows, 1.01 * rate))
    job = make_job(kind="logreg", optimizer="sgd")
    assert max(distances(job, train(Numpy(), job)).values()) > TOLERATED


def test_l_bfgs_minimises_the_loss_on_all_rows() -> None:
    job = full_batch(activation="sigmoid", epochs=40, l2=1e-3)
    engine = Numpy()
    watch = train(engine, job)
    losses = [loss for loss in watch.losses if loss is not None]
    assert losses == sorted(losses, reverse=True)
    x, y, weights = job.data.x_train, job.data.y_train, watch.snapshots[-1][2]
    assert losses[-1] == pytest.approx(loss_and_gradient(job.model, weights, x, y)[0], rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]
    assert watch.snapshots[-1][0] == len(losses)
    assert watch.counts["evaluations"] * len(x) >= watch.snapshots[-1][1] >= len(losses) * len(x)
    np.testing.assert_array_equal(
        engine.predict(job.data.x_test), logits(job.model, weights, job.data.x_test).argmax(axis=1)
    )


def test_l_bfgs_reaches_the_loss_that_scipy_reaches() -> None:
    from scipy.optimize import minimize

    job = full_batch(activation="sigmoid", epochs=20)
    weights = train(Numpy(), job).snapshots[-1][2]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = loss_and_gradient(job.model, unflatten(job.model, flat), job.data.x_train, job.data.y_train)
        return loss, flatten(gradient)

    options = {"maxiter": 20, "ftol": 0, "gtol": 0}
    found = minimize(objective, flatten(job.weights).astype(float), jac=True, method="L-BFGS-B", options=options)
    ours, _ = loss_and_gradient(job.model, weights, job.data.x_train, job.data.y_train)
    assert ours == pytest.approx(found.fun, rel=0.05)


def test_l_bfgs_stops_on_request() -> None:
    job = full_batch(epochs=40)
    watch = train(Numpy(), job, stop_at=5)
    assert len(watch.losses) == 5
    assert watch.snapshots[-1][0] == 5


def full_batch(**settings: Any) -> Job:
    """Return a job for l-bfgs: every iteration uses all rows."""
    job = make_job(batch_size=330, learning_rate=1.0, **settings)
    job.params = {**job.params, "optimizer": "l-bfgs"}
    return job
