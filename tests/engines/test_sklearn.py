"""The sklearn engine against the reference, also with mistakes put into it on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.training import distances, make_job, make_trial, pictures, train
from trainoff.engines import Refused
from trainoff.engines import sklearn as adapter
from trainoff.engines.sklearn import Sklearn
from trainoff.models import fingerprint, logits

EXACT, TOLERATED = 1e-3, 5e-3


def test_a_learning_rate_inside_the_velocity_is_noticed_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "momentum", lambda job, step: 0.9)  # as scikit-learn does it
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert max(distances(changing, train(Sklearn(), changing)).values()) > TOLERATED
    assert max(distances(constant, train(Sklearn(), constant)).values()) <= EXACT


def test_scikit_learns_own_scaling_of_alpha_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = adapter.set_rows
    monkeypatch.setattr(adapter, "set_rows", lambda classifier, rows, l2: correct(classifier, rows, l2 / rows))
    job = make_job(l2=0.1)
    assert max(distances(job, train(Sklearn(), job)).values()) > TOLERATED


def test_it_reports_import_and_compile_and_does_not_change_the_job() -> None:
    job = make_job()
    before = fingerprint(job.weights)
    watch = train(Sklearn(), job)
    assert watch.phases == ["import", "compile"]
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert fingerprint(job.weights) == before


def test_two_classes_are_refused_with_a_reason() -> None:
    with pytest.raises(Refused, match="scikit-learn trains two classes with one logistic output"):
        train(Sklearn(), make_job(pictures(classes=2)))


def test_its_logistic_regression_is_exact_for_batches_of_one_row() -> None:
    job = make_job(kind="logreg", optimizer="sgd", batch_size=1, epochs=1)
    assert max(distances(job, train(Sklearn(), job)).values()) <= EXACT


def test_its_logistic_regression_reports_that_it_steps_row_by_row() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=2.0)
    assert max(distances(job, train(Sklearn(), job)).values()) > EXACT
    trial = make_trial("sklearn", model="logreg", batch_size=32)
    assert Sklearn().differs(trial) == "SGDClassifier takes a small step after every row, not one step per batch"
    assert Sklearn().differs(make_trial("sklearn", model="logreg", batch_size=1)) is None


def test_its_logistic_regression_trains_and_predicts() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0, epochs=20)
    engine = Sklearn()
    watch = train(engine, job)
    found = engine.predict(job.data.x_test)
    np.testing.assert_array_equal(found, logits(job.model, watch.snapshots[-1][2], job.data.x_test).argmax(axis=1))
    assert np.mean(engine.predict(job.data.x_train) == job.data.y_train) > 0.8
