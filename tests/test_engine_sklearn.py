"""The sklearn engine: scikit-learn's own code, held to the reference's mathematics."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from trainings import OPTIMIZERS, distances, make_job, make_trial, pictures, train
from trainoff.engines import Refused
from trainoff.engines.sklearn import Sklearn
from trainoff.engines.sklearn import mlp as adapter
from trainoff.models import ACTIVATIONS, SCHEDULES, fingerprint, labels, loss_and_gradient

EXACT, TOLERATED = 1e-3, 5e-3


@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_exact(optimizer: str, schedule: str, activation: str, l2: float) -> None:
    job = make_job(optimizer=optimizer, schedule=schedule, activation=activation, l2=l2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a clipped batch size would be told in a warning
        found = distances(job, train(Sklearn(), job))
    assert sorted(found) == [1, 20]
    assert max(found.values()) <= EXACT


@pytest.mark.parametrize("hidden", [(), (24, 16)], ids=str)
def test_it_is_exact_with_any_number_of_layers(hidden: tuple[int, ...]) -> None:
    job = make_job(hidden=hidden)
    assert max(distances(job, train(Sklearn(), job)).values()) <= EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_exact_at_the_size_of_mnist(optimizer: str) -> None:
    job = make_job(pictures(2000, 784), hidden=(800,), batch_size=128, epochs=2, optimizer=optimizer)
    watch = train(Sklearn(), job)
    assert max(distances(job, watch).values()) <= EXACT
    assert {part.dtype for _, _, weights in watch.snapshots for part in weights} == {np.dtype(np.float32)}


def test_the_rate_inside_the_velocity_is_noticed_when_the_rate_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter, "momentum", lambda job, step: 0.9)  # as scikit-learn has it
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert max(distances(changing, train(Sklearn(), changing)).values()) > TOLERATED
    assert max(distances(constant, train(Sklearn(), constant)).values()) <= EXACT


def test_alpha_as_scikit_learn_has_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapter.set_rows
    monkeypatch.setattr(adapter, "set_rows", lambda classifier, rows, l2: right(classifier, rows, l2 / rows))
    job = make_job(l2=0.1)
    assert max(distances(job, train(Sklearn(), job)).values()) > TOLERATED


def test_it_books_import_and_compile_and_leaves_the_job_as_it_was() -> None:
    job = make_job()
    before = fingerprint(job.weights)
    watch = train(Sklearn(), job)
    assert watch.phases == ["import", "compile"]
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert fingerprint(job.weights) == before


def test_the_loss_is_that_of_the_batch_before_the_step_with_l2() -> None:
    job = make_job(l2=0.01)
    _, rows = next(job.order.batches())
    expected, _ = loss_and_gradient(job.model, job.weights, job.data.x_train[rows], job.data.y_train[rows])
    assert train(Sklearn(), job).losses[0] == pytest.approx(expected, rel=1e-5)


def test_it_stops_when_told_and_takes_a_last_snapshot() -> None:
    watch = train(Sklearn(), make_job(), stop_at=5)
    assert [step for step, _, _ in watch.snapshots] == [1, 5]


def test_it_learns_and_predicts() -> None:
    job = make_job(pictures(2000), epochs=5)
    engine = Sklearn()
    train(engine, job)
    found = engine.predict(job.data.x_test)
    assert found.dtype == np.int64
    assert np.mean(found == job.data.y_test) > 0.95


def test_a_training_that_diverges_says_so_by_its_loss() -> None:
    watch = train(Sklearn(), make_job(learning_rate=1e30, schedule="constant"))
    assert np.isnan(np.array(watch.losses, float)[-1])


def test_two_classes_are_refused_with_a_sentence() -> None:
    with pytest.raises(Refused, match="scikit-learn trains two classes with one logistic output"):
        train(Sklearn(), make_job(pictures(classes=2)))


def test_what_is_missing_comes_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sklearn, "modules", ("no_such_module",))
    (missing,) = Sklearn().missing()
    assert str(missing) == "needs the Python module no_such_module; pip install 'trainoff[sklearn]'"


def test_its_logistic_regression_is_exact_for_batches_of_one_row() -> None:
    job = make_job(kind="logreg", optimizer="sgd", batch_size=1, epochs=1)
    assert max(distances(job, train(Sklearn(), job)).values()) <= EXACT


def test_its_logistic_regression_says_that_batches_are_taken_row_by_row() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=2.0)
    assert max(distances(job, train(Sklearn(), job)).values()) > EXACT
    trial = make_trial("sklearn", model="logreg", batch_size=32)
    assert Sklearn().differs(trial) == "SGDClassifier takes a small step after every row, not one step per batch"
    assert Sklearn().differs(make_trial("sklearn", model="logreg", batch_size=1)) is None


def test_its_logistic_regression_learns_and_predicts() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0, epochs=20)
    engine = Sklearn()
    watch = train(engine, job)
    found = engine.predict(job.data.x_test)
    np.testing.assert_array_equal(found, labels(job.model, watch.snapshots[-1][2], job.data.x_test))
    assert np.mean(engine.predict(job.data.x_train) == job.data.y_train) > 0.8
