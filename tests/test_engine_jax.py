"""The jax engine: JAX's own gradients, held to the reference's mathematics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainings import OPTIMIZERS, distances, make_job, pictures, train
from trainoff.engines import Job
from trainoff.engines import jax as adapter
from trainoff.engines.jax import Jax
from trainoff.models import ACTIVATIONS, SCHEDULES, fingerprint, labels, loss_and_gradient
from watching import QuietWatch

EXACT, TOLERATED = 1e-3, 5e-3
KINDS = ["mlp", "cnn"]


def worst(job: Job, watch: QuietWatch) -> float:
    found = distances(job, watch)
    assert sorted(found) == [1, 20]
    return max(found.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_exact(kind: str, optimizer: str, schedule: str) -> None:
    job = make_job(kind=kind, optimizer=optimizer, schedule=schedule)
    assert worst(job, train(Jax(), job)) <= EXACT


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_exact_with_every_activation_and_l2(kind: str, activation: str) -> None:
    job = make_job(kind=kind, activation=activation, l2=1e-3, hidden=(24, 16))
    assert worst(job, train(Jax(), job)) <= EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "hidden"), [("mlp", (800,)), ("cnn", (64,))])
def test_it_is_exact_at_the_size_of_mnist(kind: str, hidden: tuple[int, ...], optimizer: str) -> None:
    data = pictures(2000, 784)
    job = make_job(data, kind=kind, hidden=hidden, batch_size=128, epochs=2, optimizer=optimizer)
    assert worst(job, train(Jax(), job)) <= EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapter.mean_loss
    monkeypatch.setattr(adapter, "mean_loss", lambda *given: 1.01 * right(*given))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst(job, train(Jax(), job)) > TOLERATED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_lost_row_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapter.mean_loss
    monkeypatch.setattr(adapter, "mean_loss", lambda weights, model, x, y: right(weights, model, x[:-1], y[:-1]))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst(job, train(Jax(), job)) > TOLERATED


def test_the_rate_inside_the_velocity_is_noticed_when_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(w: Any, memory: list[Any], g: Any, rate: Any, step: Any, mu: float) -> tuple[Any, list[Any]]:
        velocity = mu * memory[0] - rate * g
        return w + velocity, [velocity]

    monkeypatch.setattr(adapter, "update", inside)
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert worst(changing, train(Jax(), changing)) > TOLERATED
    assert worst(constant, train(Jax(), constant)) <= EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_opening_compiles_and_leaves_weights_and_optimiser_as_they_were(optimizer: str) -> None:
    job = make_job(optimizer=optimizer)
    engine, watch = Jax(), QuietWatch(steps=job.order.steps)
    engine.open(job, watch)
    weights, memory = engine._state
    assert watch.phases == ["import", "compile"]
    assert watch.counts == {"threads": 1}
    assert fingerprint([np.asarray(part) for part in weights]) == fingerprint(job.weights)
    assert [len(parts) for parts in memory] == [adapter.MEMORY[optimizer]] * 4
    assert not any(np.asarray(part).any() for parts in memory for part in parts)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_and_predicting_compile_nothing(optimizer: str) -> None:
    job = make_job(pictures(1100), optimizer=optimizer)  # the last batch and the last part of the test rows are partial
    engine, watch = Jax(), QuietWatch(steps=job.order.steps)
    engine.open(job, watch)
    opened = engine._step._cache_size(), engine._labels._cache_size()
    engine.train(job, watch)
    engine.predict(job.data.x_test)
    assert opened == (2, 2)
    assert (engine._step._cache_size(), engine._labels._cache_size()) == opened


def test_snapshots_are_float32_with_the_samples_seen_and_the_job_stays_as_it_was() -> None:
    job = make_job()
    before = fingerprint(job.weights)
    watch = train(Jax(), job)
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert {part.dtype for _, _, weights in watch.snapshots for part in weights} == {np.dtype(np.float32)}
    assert fingerprint(job.weights) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_batch_before_the_step_with_l2(kind: str) -> None:
    job = make_job(kind=kind, l2=0.01)
    _, rows = next(job.order.batches())
    expected, _ = loss_and_gradient(job.model, job.weights, job.data.x_train[rows], job.data.y_train[rows])
    assert train(Jax(), job).losses[0] == pytest.approx(expected, rel=1e-5)


def test_it_stops_when_told_and_takes_a_last_snapshot() -> None:
    watch = train(Jax(), make_job(), stop_at=5)
    assert [step for step, _, _ in watch.snapshots] == [1, 5]


def test_a_batch_larger_than_the_data_is_the_whole_data() -> None:
    job = make_job(batch_size=1000, epochs=20)
    assert worst(job, train(Jax(), job)) <= EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_and_predicts_what_the_reference_would(kind: str) -> None:
    job = make_job(pictures(2000), kind=kind, epochs=5)
    engine = Jax()
    watch = train(engine, job)
    found = engine.predict(job.data.x_test)  # more rows than it takes at a time
    assert found.dtype == np.int64
    assert np.mean(found == job.data.y_test) > 0.95
    assert np.mean(found != labels(job.model, watch.snapshots[-1][2], job.data.x_test)) <= 0.001


def test_a_training_that_diverges_says_so_by_its_loss() -> None:
    watch = train(Jax(), make_job(learning_rate=1e30, schedule="constant"))
    assert not np.isfinite(np.array(watch.losses, float)[-1])


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3.5, 4)])
def test_the_threads_are_those_of_the_cores_in_a_process_of_its_own(cores: float, threads: int) -> None:
    code = (
        "from pathlib import Path\n"
        "from trainings import make_job, train\n"
        "from trainoff.engines.jax import Jax\n"
        f"watch = train(Jax(), make_job(cores={cores}, epochs=1))\n"
        "names = [path.read_text() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "print(watch.counts['threads'], sum('XLAEigen' in name for name in names))"
    )
    words = [sys.executable, "-c", code]
    ran = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{threads} {threads}\n"
    assert ran.stderr == ""


def test_the_adapter_is_loaded_without_jax_and_numpy() -> None:
    code = "import sys, trainoff.engines.jax; print({'jax', 'numpy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_what_is_missing_comes_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jax, "modules", ("no_such_module",))
    (missing,) = Jax().missing()
    assert str(missing) == "needs the Python module no_such_module; pip install 'trainoff[jax]'"
