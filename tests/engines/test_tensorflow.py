"""The tensorflow engine: TensorFlow's own gradients and kernels, held to the reference's mathematics."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, RecordingWatch, clicks, distances, make_job, train
from trainoff.data import Csr, Data
from trainoff.engines import Job, Refused
from trainoff.engines import tensorflow as adapter
from trainoff.engines.tensorflow import NO_GPU, TensorFlow, network
from trainoff.engines.tensorflow.network import TfLogistic
from trainoff.models import fingerprint
from trainoff.study import Trial

EXACT, TOLERATED = 1e-3, 5e-3
MODELS = [("mlp", "sgd"), ("mlp", "momentum"), ("mlp", "adam"), ("cnn", "momentum"), ("cnn", "adam"), ("logreg", "sgd")]


def worst(job: Job, watch: RecordingWatch) -> float:
    found = distances(job, watch)
    assert sorted(found) == [1, 20]
    return max(found.values())


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(*each, marks=() if each in [("mlp", "momentum"), ("cnn", "adam")] else pytest.mark.soak)
        for each in product(["mlp", "cnn"], OPTIMIZERS)
    ],
)
def test_networks_are_exact_with_xla(kind: str, optimizer: str) -> None:
    job = make_job(kind=kind, optimizer=optimizer, l2=1e-3, xla=True)
    assert worst(job, train(TensorFlow(), job)) <= EXACT


def trial(model: str = "mlp", **params: Any) -> Trial:
    given = {"device": "cpu", "xla": False, "l2": 0.0, **params}
    return Trial("s", "tensorflow", f"x-{model}", "single", 1, 1.0, None, "processes", given, 1, model=model)


def keras_momentum(tf: Any, weights: Any, memory: list[Any], slope: Any, numbers: Any, mu: float) -> None:
    """The update as keras.optimizers.SGD makes it, with the rate inside the velocity."""
    memory[0].assign(mu * memory[0] - numbers[0] * slope)
    weights.assign_add(memory[0])


def test_the_momentum_of_keras_is_noticed_when_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "update", keras_momentum)
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert worst(changing, train(TensorFlow(), changing)) > TOLERATED
    assert worst(constant, train(TensorFlow(), constant)) <= EXACT


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = network.differentiate

    def steep(*given: Any) -> Any:
        loss, gradient = right(*given)
        return loss, [1.01 * part for part in gradient]

    monkeypatch.setattr(network, "differentiate", steep)
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst(job, train(TensorFlow(), job)) > TOLERATED


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_lost_row_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = network.differentiate
    monkeypatch.setattr(network, "differentiate", lambda tf, model, w, x, y: right(tf, model, w, x[:-1], y[:-1]))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst(job, train(TensorFlow(), job)) > TOLERATED


def test_a_lost_row_of_a_logistic_regression_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TfLogistic.learn
    monkeypatch.setattr(TfLogistic, "learn", lambda self, step, rows, rate: right(self, step, rows[:-1], rate))
    job = make_job(kind="logreg", optimizer="sgd", learning_rate=1.0)
    assert worst(job, train(TensorFlow(), job)) > TOLERATED


@pytest.mark.parametrize(("kind", "optimizer"), MODELS)
def test_opening_compiles_and_leaves_weights_and_optimiser_as_they_were(kind: str, optimizer: str) -> None:
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
    assert worst(job, watch) <= EXACT
    assert not watch.snapshots[-1][2][0].any()


def test_l2_on_sparse_rows_is_refused_with_a_sentence() -> None:
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


def test_threads_that_cannot_be_changed_any_more_are_told() -> None:
    train(TensorFlow(), make_job(epochs=1))
    with pytest.raises(RuntimeError, match="started with 1 threads in this process and cannot change to 2; train in a"):
        train(TensorFlow(), make_job(epochs=1, cores=2))


def test_in_a_process_of_its_own_it_has_the_threads_of_the_cores_and_no_neighbours() -> None:
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
    # TensorFlow keeps quiet, but for two lines on processors that oneDNN has been made for, which nothing turns off.
    told = [line for line in ran.stderr.splitlines() if "oneDNN" not in line and "absl::InitializeLog" not in line]
    assert told == []


@pytest.mark.parametrize(
    ("there", "version"),
    [({"tensorflow-cpu": "2.21.0"}, "2.21.0"), ({"tensorflow": "2.22.1"}, "2.22.1"), ({}, "not installed")],
    ids=str,
)
def test_the_version_is_that_of_whichever_distribution_is_there(
    there: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(name: str) -> str:
        if name in there:
            return there[name]
        raise adapter.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter.metadata, "version", look_up)
    assert TensorFlow().version() == version
