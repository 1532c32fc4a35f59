"""The torch engine: torch's own gradients and kernels, held to the reference's mathematics."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainings import OPTIMIZERS, distance, distances, make_job, pictures, reference, train
from trainoff.data import Csr, Data
from trainoff.engines import Job, Refused
from trainoff.engines.torch import Torch, make_learner
from trainoff.models import ACTIVATIONS, SCHEDULES, fingerprint, flatten, labels, loss_and_gradient
from trainoff.study import Trial
from watching import QuietWatch

EXACT, TOLERATED = 1e-3, 5e-3
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and torch for it")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
MODELS = [("mlp", "sgd"), ("mlp", "momentum"), ("mlp", "adam"), ("cnn", "momentum"), ("cnn", "adam"), ("logreg", "sgd")]


def worst(job: Job, watch: QuietWatch) -> float:
    found = distances(job, watch)
    assert sorted(found) == [1, 20]
    return max(found.values())


def torch_job(device: str = "cpu", **other: Any) -> Job:
    return make_job(device=device, precision="float32", **other)


@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("device", DEVICES)
def test_networks_are_exact(device: str, kind: str, optimizer: str, schedule: str, activation: str, l2: float) -> None:
    job = torch_job(device, kind=kind, optimizer=optimizer, schedule=schedule, activation=activation, l2=l2)
    assert worst(job, train(Torch(), job)) <= EXACT


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("device", DEVICES)
def test_logistic_regression_is_exact(device: str, schedule: str) -> None:
    job = torch_job(device, kind="logreg", optimizer="sgd", schedule=schedule, learning_rate=1.0)
    assert worst(job, train(Torch(), job)) <= EXACT


@pytest.mark.parametrize("hidden", [(), (24, 16), (24, 16, 12)], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_it_is_exact_with_any_number_of_layers(kind: str, hidden: tuple[int, ...]) -> None:
    job = torch_job(kind=kind, hidden=hidden)
    assert worst(job, train(Torch(), job)) <= EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "hidden"), [("mlp", (800,)), ("cnn", (64,))])
@pytest.mark.parametrize("device", DEVICES)
def test_it_is_exact_at_the_size_of_mnist(device: str, kind: str, hidden: tuple[int, ...], optimizer: str) -> None:
    data = pictures(2000, 784)
    job = torch_job(device, data=data, kind=kind, hidden=hidden, batch_size=128, epochs=2, optimizer=optimizer)
    assert worst(job, train(Torch(), job)) <= EXACT


def resident(job: Job) -> Any:
    """The training as the GPU makes it, on the CPU and without graphs."""
    from trainoff.engines.torch import resident, rows

    source = rows.of(job.data.x_train, job.data.y_train, "cpu")
    return resident.Resident(job, make_learner(job, "cpu"), source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize(("kind", "optimizer"), MODELS)
def test_steps_that_look_up_their_rows_and_rate_are_exact(kind: str, optimizer: str, l2: float, schedule: str) -> None:
    job = torch_job(kind=kind, optimizer=optimizer, schedule=schedule, l2=l2 if kind != "logreg" else 0.0)
    watch = QuietWatch(steps=job.order.steps)
    resident(job).train(job, watch)
    assert worst(job, watch) <= EXACT
    assert watch.losses == [None] * job.order.steps  # to read a loss would be to wait for it
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]


def test_steps_that_look_up_their_rows_tell_the_loss_if_training_may_stop_by_it() -> None:
    job = torch_job(l2=0.01, stop={"tol": 1e-4, "patience": 2})
    told, watch = train(Torch(), job), QuietWatch(steps=job.order.steps, stop_at=15)
    resident(job).train(job, watch)
    assert watch.losses == pytest.approx(told.losses[:15], rel=1e-4)
    assert [step for step, _, _ in watch.snapshots] == [1, 15]


@pytest.mark.parametrize("batch_size", [32, 30, 1000])
def test_every_batch_is_looked_up_as_the_order_has_it(batch_size: int) -> None:
    from trainoff.engines.torch.resident import padded

    order = torch_job(batch_size=batch_size).order
    lines = padded(order).numpy()
    sizes = order.batch_sizes
    assert len(lines) == order.steps
    for step, rows in order.batches():
        size = sizes[-1] if step % order.steps_per_epoch == 0 else sizes[0]
        assert np.array_equal(lines[step - 1, :size], rows)


def sparse(rows: list[list[tuple[int, float]]], width: int = 50) -> Csr:
    """Sparse rows from lists of (column, value)."""
    starts = np.cumsum([0, *(len(row) for row in rows)])
    flat = [pair for row in rows for pair in row]
    columns, values = [column for column, _ in flat], [value for _, value in flat]
    return Csr(starts, np.array(columns, np.int32), np.array(values, np.float32), width)


def test_empty_rows_and_features_that_appear_twice_count_as_the_reference_counts_them() -> None:
    x = sparse([[(3, 1.0), (3, 0.5)], [], [(7, 2.0)], [], [], []])  # batches of two: the last has no feature at all
    y = np.array([1, 0, 1, 1, 1, 0])
    data = Data("few", x, y, x, y, 2, "few-1")
    job = torch_job(data=data, kind="logreg", optimizer="sgd", batch_size=2, learning_rate=1.0, epochs=8)
    exact = reference(job)
    for watch in (train(Torch(), job), QuietWatch(steps=job.order.steps)):
        if not watch.snapshots:
            resident(job).train(job, watch)
        seen = {step: weights for step, _, weights in watch.snapshots}
        assert max(distance(job, step, seen[step], exact) for step in exact) <= EXACT


def test_rows_cut_from_a_larger_set_are_trained_on_as_if_alone() -> None:
    rows = [[(row % 50, 1.0), (row * 7 % 50, 0.3)] for row in range(40)]
    y = np.arange(40) % 2
    whole = Data("cut", sparse(rows), y, sparse(rows), y, 2, "cut-1")
    cut = replace(whole, x_train=whole.x_train[10:30], y_train=y[10:30])
    job = torch_job(data=cut, kind="logreg", optimizer="sgd", batch_size=4, epochs=5, learning_rate=1.0)
    assert worst(job, train(Torch(), job)) <= EXACT


def test_a_sparse_step_touches_only_the_features_of_the_batch() -> None:
    job = torch_job(kind="logreg", optimizer="sgd", learning_rate=1.0)
    start = np.random.default_rng(3).standard_normal(job.model.features).astype(np.float32)
    job = replace(job, weights=[start, job.weights[1]])
    _, rows = next(job.order.batches())
    (_, _, after), *_ = train(Torch(), job).snapshots
    touched = np.unique(job.data.x_train[rows].columns)
    assert 0 < len(touched) < job.model.features
    assert np.array_equal(np.flatnonzero(after[0] != start), touched)


@pytest.mark.parametrize(("kind", "optimizer"), MODELS)
def test_it_books_its_phases_and_warming_up_leaves_no_trace(kind: str, optimizer: str) -> None:
    job = torch_job(kind=kind, optimizer=optimizer, cores=2.5)
    before = fingerprint(job.weights)
    engine, watch = Torch(), QuietWatch(steps=job.order.steps)
    engine.open(job, watch)
    assert watch.phases == ["import", "ship", "compile"]
    assert watch.counts == {"threads": 3}
    assert torch.get_num_threads() == 3
    assert fingerprint(engine._learner.weights()) == before
    others = engine._learner.state[len(job.weights) :]
    assert not any(part.any() for part in others)  # velocities, moments and the count of steps
    engine.train(job, watch)
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert fingerprint(job.weights) == before


def test_a_mapped_training_set_is_not_copied_and_nothing_warns(tmp_path: Path) -> None:
    from trainoff.engines.torch import rows

    data = pictures()
    np.save(tmp_path / "x.npy", data.x_train)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    job = torch_job(data=replace(data, x_train=mapped))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows.on(mapped, "cpu").data_ptr() == mapped.ctypes.data
        assert worst(job, train(Torch(), job)) <= EXACT


@pytest.mark.parametrize("kind", ["mlp", "cnn", "logreg"])
def test_the_loss_is_that_of_the_batch_before_the_step_with_l2(kind: str) -> None:
    job = torch_job(kind=kind, optimizer="sgd", l2=0.0 if kind == "logreg" else 0.01)
    seen = train(Torch(), job).losses
    weights = job.weights
    for (step, rows), loss in zip(job.order.batches(), seen[:2], strict=False):
        expected, gradient = loss_and_gradient(job.model, weights, job.data.x_train[rows], job.data.y_train[rows])
        assert loss == pytest.approx(expected, rel=1e-5)
        weights = [w - job.rates[step - 1] * g for w, g in zip(weights, gradient, strict=True)]


def test_l2_on_the_biases_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainoff.engines.torch import network

    monkeypatch.setattr(network, "groups", lambda l2: [(slice(None), l2)])
    job = torch_job(l2=0.5, learning_rate=0.2)
    assert worst(job, train(Torch(), job)) > TOLERATED


def test_it_stops_when_told_and_takes_a_last_snapshot() -> None:
    watch = train(Torch(), torch_job(), stop_at=5)
    assert [step for step, _, _ in watch.snapshots] == [1, 5]


def test_a_batch_larger_than_the_data_is_the_whole_data() -> None:
    job = torch_job(batch_size=1000)
    assert max(distances(job, train(Torch(), job)).values()) <= EXACT


@pytest.mark.parametrize(
    ("kind", "optimizer", "rate", "good"),
    [("mlp", "momentum", None, 0.95), ("cnn", "adam", None, 0.9), ("logreg", "sgd", 1.0, 0.55)],
)
@pytest.mark.parametrize("device", DEVICES)
def test_it_learns_and_predicts_what_the_reference_would(
    device: str, kind: str, optimizer: str, rate: float | None, good: float
) -> None:
    data = None if kind == "logreg" else pictures(2000)
    job = torch_job(device, data=data, kind=kind, optimizer=optimizer, learning_rate=rate, epochs=20 if rate else 5)
    engine = Torch()
    watch = train(engine, job)
    found = engine.predict(job.data.x_test)  # of the pictures, more rows than it takes at a time
    engine.close()
    assert found.dtype == np.int64
    assert np.mean(found == job.data.y_test) > good
    expected = labels(job.model, watch.snapshots[-1][2], job.data.x_test)
    assert np.mean(found != expected) <= 0.001  # rounding may decide a tie


@pytest.mark.parametrize(("kind", "optimizer"), [("mlp", "sgd"), ("logreg", "sgd")])
def test_a_training_that_diverges_says_so_by_its_loss_or_its_weights(kind: str, optimizer: str) -> None:
    watch = train(Torch(), torch_job(kind=kind, optimizer=optimizer, learning_rate=1e38, schedule="constant", epochs=9))
    numbers = [*np.array(watch.losses, float), *flatten(watch.snapshots[-1][2])]
    assert not np.isfinite(numbers).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_gpu_is_refused_with_a_sentence() -> None:
    with pytest.raises(Refused, match=r'torch .* (has no CUDA|finds no GPU on this machine); use device = "cpu"'):
        train(Torch(), torch_job("cuda"))


@GPU
def test_on_a_gpu_it_tells_how_busy_the_gpu_was_and_what_memory_it_took() -> None:
    watch = train(Torch(), torch_job("cuda"))
    assert watch.phases == ["import", "ship", "compile"]
    assert 0 < watch.counts["gpu_busy"] <= 1
    assert watch.counts["gpu_memory_bytes"] > 0


def trial(model: str = "mlp", **params: Any) -> Trial:
    given = {"optimizer": "sgd", "l2": 0.0, "device": "cpu", "precision": "float32", **params}
    return Trial("s", "torch", f"x-{model}", "single", 1, 1.0, None, "processes", given, 1, model=model)


def test_what_it_cannot_do_is_refused_with_a_sentence() -> None:
    engine = Torch()
    assert engine.refuses(trial()) is None
    assert engine.refuses(trial(device="cuda", precision="tf32")) is None
    assert "only on a GPU" in str(engine.refuses(trial(precision="tf32")))
    assert "leave l2 at 0" in str(engine.refuses(trial("logreg", l2=0.1)))


@GPU
def test_tf32_is_told_from_exact_arithmetic_and_is_tolerable() -> None:
    job = torch_job("cuda", data=pictures(2000, 784), hidden=(800,), batch_size=256)
    job.params = {**job.params, "precision": "tf32"}
    assert EXACT / 10 < max(distances(job, train(Torch(), job)).values()) <= TOLERATED


def test_the_adapter_is_loaded_without_torch() -> None:
    code = "import sys, trainoff.engines.torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
