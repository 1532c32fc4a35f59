"""The tensorflow engine against the reference, also with mistakes put into it on purpose."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, RecordingWatch, clicks, make_job, make_trial, train, worst_distance
from trainoff.data import Csr, Data
from trainoff.engines import Refused
from trainoff.engines import tensorflow as adapter
from trainoff.engines.tensorflow import NO_GPU, TensorFlow, network
from trainoff.engines.tensorflow.network import TfLogistic
from trainoff.models import fingerprint
from trainoff.study import Trial

EXACT, TOLERATED = 1e-3, 5e-3
MODELS = [("mlp", "sgd"), ("mlp", "momentum"), ("mlp", "adam"), ("cnn", "momentum"), ("cnn", "adam"), ("logreg", "sgd")]


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(*each, marks=() if each in [("mlp", "momentum"), ("cnn", "adam")] else pytest.mark.soak)
        for each in product(["mlp", "cnn"], OPTIMIZERS)
    ],
)
def test_networks_are_exact_with_xla(kind: str, optimizer: str) -> None:
    job = make_job(kind=kind, optimizer=optimizer, l2=1e-3, xla=True)
    assert worst_distance(job, train(TensorFlow(), job)) <= EXACT


def trial(model: str = "mlp", **params: Any) -> Trial:
    return make_trial("tensorflow", model, **{"device": "cpu", "xla": False, **params})


def keras_momentum(tf: Any, weights: Any, memory: list[Any], gradient: Any, numbers: Any, mu: float) -> None:
    """Update as keras.optimizers.SGD does, with the learning rate inside the velocity."""
    memory[0].assign(mu * memory[0] - numbers[0] * gradient)
    weights.assign_add(memory[0])


def test_the_momentum_of_keras_is_noticed_when_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "update", keras_momentum)
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert worst_distance(changing, train(TensorFlow(), changing)) > TOLERATED
    assert worst_distance(constant, train(TensorFlow(), constant)) <= EXACT


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = network.differentiate

    def scaled(*given: Any) -> Any:
        loss, gradient = correct(*given)
        return loss, [1.01 * part for part in gradient]

    monkeypatch.setattr(network, "differentiate", scaled)
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst_distance(job, train(TensorFlow(), job)) > TOLERATED


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_lost_row_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = network.differentiate
    monkeypatch.setattr(network, "differentiate", lambda tf, model, w, x, y: correct(tf, model, w, x[:-1], y[:-1]))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst_distance(job, train(TensorFlow(), job)) > TOLERATED


def test_a_lost_row_of_a_logistic_regression_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TfLogistic.train_step
    monkeypatch.setattr(TfLogistic, "train_step", lambda self, step, rows, rate: right(self, step, rows[:-1], rate))
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0)
    assert worst_distance(job, train(TensorFlow(), job)) > TOLERATED


@pytest.mark.parametrize(("kind", "optimizer"), MODELS)
def test_opening_compiles_and_changes_neither_weights_nor_optimiser(kind: str, optimizer: str) -> None:
    job = make_job(kind=kind, optimizer=optimizer)
    engine, watch = TensorFlow(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    learner = engine._learner
    assert watch.phases == ["import", "compile"]
    assert watch.counts == {"threads": 1}
    assert fingerprint([part.numpy() for part in learner.weights]) == fingerprint(job.weights)
    assert not any(part.numpy().any() for part in learner.state[len(job.weights) :])


@pytest.mark.parametrize("kind", ["mlp", "logreg"])
def test_training_traces_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []
    for learner in (network.TfNetwork, TfLogistic):
        right = learner._step
        monkeypatch.setattr(learner, "_step", lambda *given, right=right: traced.append("step") or right(*given))
    job = make_job(kind=kind, optimizer="sgd")
    engine, watch = TensorFlow(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    opened = len(traced)
    engine.train(job, watch)
    assert opened >= 1
    assert len(traced) == opened


def test_a_step_of_a_logistic_regression_touches_only_the_features_of_the_batch() -> None:
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0)
    job.weights[0][:] = np.linspace(-1, 1, len(job.weights[0]))
    watch = train(TensorFlow(), job, stop_at=1)
    _, rows = next(job.order.batches())
    after = watch.snapshots[0][2][0]
    touched = np.unique(job.data.x_train[rows].columns)
    untouched = np.setdiff1d(np.arange(len(after)), touched)
    assert len(untouched) > 100
    assert np.array_equal(after[untouched], job.weights[0][untouched])
    assert (after[touched] != job.weights[0][touched]).all()


def test_rows_without_a_single_nonzero_train_the_bias_alone() -> None:
    full = clicks()
    empty = Csr(np.zeros(331, np.int64), full.x_train.columns[:0], full.x_train.values[:0], full.x_train.width)
    data: Data = replace(full, x_train=empty)
    job = make_job(data, kind="logreg", optimizer="sgd", learning_rate=1.0)
    watch = train(TensorFlow(), job)
    assert worst_distance(job, watch) <= EXACT
    assert not watch.snapshots[-1][2][0].any()


def test_l2_on_sparse_rows_is_refused_with_a_reason() -> None:
    assert "leave l2 at 0" in str(TensorFlow().refuses(trial("logreg", l2=0.1)))
    assert TensorFlow().refuses(trial("logreg")) is None
    assert TensorFlow().refuses(trial(l2=0.1)) is None


def test_a_build_without_gpu_refuses_to_train_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "installed", lambda: {"tensorflow-cpu": "2.21.0"})
    assert TensorFlow().refuses(trial(device="cuda")) == NO_GPU
    assert TensorFlow().refuses(trial()) is None


def test_a_machine_without_gpu_refuses_to_train_on_one() -> None:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    with pytest.raises(
        Refused, match=r'needs a GPU and a TensorFlow that can use it; pip install .* or use device = "cpu"'
    ):
        train(TensorFlow(), make_job(device="cuda"))


def test_a_change_of_threads_after_the_first_training_is_an_error() -> None:
    train(TensorFlow(), make_job(epochs=1))
    with pytest.raises(RuntimeError, match="started with 1 threads in this process and cannot change to 2; train in a"):
        train(TensorFlow(), make_job(epochs=1, cores=2))


def test_it_uses_as_many_threads_as_cores_and_imports_no_other_framework() -> None:
    code = (
        "import sys\n"
        "from helpers.training import make_job, train\n"
        "from trainoff.engines.tensorflow import TensorFlow\n"
        "watch = train(TensorFlow(), make_job(cores=2.5, epochs=1))\n"
        "import tensorflow as tf\n"
        "found = tf.config.threading\n"
        "print(found.get_intra_op_parallelism_threads(), found.get_inter_op_parallelism_threads(), watch.counts)\n"
        "print({'jax', 'sklearn'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["3 1 {'threads': 3}", "set()"]
    # Nothing turns off two lines about oneDNN and the processor.
    lines = [line for line in ran.stderr.splitlines() if "oneDNN" not in line and "absl::InitializeLog" not in line]
    assert lines == []


@pytest.mark.parametrize(
    ("distributions", "version"),
    [({"tensorflow-cpu": "2.21.0"}, "2.21.0"), ({"tensorflow": "2.22.1"}, "2.22.1"), ({}, "not installed")],
    ids=str,
)
def test_the_version_is_that_of_the_installed_distribution(
    distributions: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version_of(name: str) -> str:
        if name in distributions:
            return distributions[name]
        raise adapter.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter.metadata, "version", version_of)
    assert TensorFlow().version() == version
