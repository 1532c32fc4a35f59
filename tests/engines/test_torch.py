"""The torch engine against the reference, also with mistakes put into it on purpose."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.training import (
    RecordingWatch,
    distance,
    distances,
    make_job,
    make_trial,
    pictures,
    reference,
    train,
    worst_distance,
)
from trainoff.data import Csr, Data
from trainoff.engines import Job, Refused
from trainoff.engines.torch import Torch, make_learner
from trainoff.models import SCHEDULES, fingerprint, flatten
from trainoff.study import Trial

EXACT, TOLERATED = 1e-3, 5e-3
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and torch for it")
MODELS = [("mlp", "sgd"), ("mlp", "momentum"), ("mlp", "adam"), ("cnn", "momentum"), ("cnn", "adam"), ("logreg", "sgd")]


def torch_job(device: str = "cpu", **other: Any) -> Job:
    return make_job(device=device, precision="float32", **other)


def resident(job: Job) -> Any:
    """Return the training as it is on a GPU, but on the CPU and without CUDA graphs."""
    from trainoff.engines.torch import cuda_graph
    from trainoff.engines.torch import network as rows

    source = rows.rows_of(job.data.x_train, job.data.y_train, "cpu")
    return cuda_graph.CudaGraphTraining(job, make_learner(job, "cpu"), source)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize(("kind", "optimizer"), MODELS)
def test_graph_steps_are_exact(kind: str, optimizer: str, l2: float, schedule: str) -> None:
    job = torch_job(kind=kind, optimizer=optimizer, schedule=schedule, l2=l2 if kind != "logreg" else 0.0)
    watch = RecordingWatch(steps=job.order.steps)
    resident(job).train(job, watch)
    assert worst_distance(job, watch) <= EXACT
    assert watch.losses == [None] * job.order.steps  # reading a loss would wait for the GPU
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]


def test_graph_steps_report_the_loss_if_it_may_stop_the_training() -> None:
    job = torch_job(l2=0.01, stop={"tol": 1e-4, "patience": 2})
    plain, watch = train(Torch(), job), RecordingWatch(steps=job.order.steps, stop_at=15)
    resident(job).train(job, watch)
    assert watch.losses == pytest.approx(plain.losses[:15], rel=1e-4)
    assert [step for step, _, _ in watch.snapshots] == [1, 15]


@pytest.mark.parametrize("batch_size", [32, 30, 1000])
def test_padded_batches_follow_the_order(batch_size: int) -> None:
    from trainoff.engines.torch.cuda_graph import padded

    order = torch_job(batch_size=batch_size).order
    lines = padded(order).numpy()
    sizes = order.batch_sizes
    assert len(lines) == order.steps
    for step, rows in order.batches():
        size = sizes[-1] if step % order.steps_per_epoch == 0 else sizes[0]
        assert np.array_equal(lines[step - 1, :size], rows)


def sparse(rows: list[list[tuple[int, float]]], width: int = 50) -> Csr:
    """Return sparse rows from lists of (column, value)."""
    starts = np.cumsum([0, *(len(row) for row in rows)])
    flat = [pair for row in rows for pair in row]
    columns, values = [column for column, _ in flat], [value for _, value in flat]
    return Csr(starts, np.array(columns, np.int32), np.array(values, np.float32), width)


def test_empty_rows_and_repeated_features_are_exact() -> None:
    x = sparse([[(3, 1.0), (3, 0.5)], [], [(7, 2.0)], [], [], []])  # batches of two: the last has no feature at all
    y = np.array([1, 0, 1, 1, 1, 0])
    data = Data("few", x, y, x, y, 2, "few-1")
    job = torch_job(data=data, kind="logreg", optimizer="sgd", batch_size=2, learning_rate=1.0, epochs=8)
    exact = reference(job)
    for watch in (train(Torch(), job), RecordingWatch(steps=job.order.steps)):
        if not watch.snapshots:
            resident(job).train(job, watch)
        seen = {step: weights for step, _, weights in watch.snapshots}
        assert max(distance(job, step, seen[step], exact) for step in exact) <= EXACT


def test_training_on_a_slice_of_sparse_rows_is_exact() -> None:
    rows = [[(row % 50, 1.0), (row * 7 % 50, 0.3)] for row in range(40)]
    y = np.arange(40) % 2
    whole = Data("cut", sparse(rows), y, sparse(rows), y, 2, "cut-1")
    cut = replace(whole, x_train=whole.x_train[10:30], y_train=y[10:30])
    job = torch_job(data=cut, kind="logreg", optimizer="sgd", batch_size=4, epochs=5, learning_rate=1.0)
    assert worst_distance(job, train(Torch(), job)) <= EXACT


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
def test_it_reports_its_phases_and_warming_up_changes_nothing(kind: str, optimizer: str) -> None:
    job = torch_job(kind=kind, optimizer=optimizer, cores=2.5)
    before, threads = fingerprint(job.weights), torch.get_num_threads()
    engine, watch = Torch(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    assert watch.phases == ["import", "ship", "compile"]
    assert watch.counts == {"threads": 3}
    assert torch.get_num_threads() == 3
    torch.set_num_threads(threads)
    assert fingerprint(engine._learner.weights()) == before
    others = engine._learner.state[len(job.weights) :]
    assert not any(part.any() for part in others)  # velocities, moments and the count of steps
    engine.train(job, watch)
    assert [(step, seen) for step, seen, _ in watch.snapshots] == [(1, 32), (20, 330 + 9 * 32), (33, 990)]
    assert fingerprint(job.weights) == before


def test_a_mapped_training_set_is_not_copied_and_causes_no_warning(tmp_path: Path) -> None:
    from trainoff.engines.torch import network as rows

    data = pictures()
    np.save(tmp_path / "x.npy", data.x_train)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    job = torch_job(data=replace(data, x_train=mapped))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows.on_device(mapped, "cpu").data_ptr() == mapped.ctypes.data
        assert worst_distance(job, train(Torch(), job)) <= EXACT


def test_l2_on_the_biases_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainoff.engines.torch import network

    monkeypatch.setattr(network, "make_groups", lambda model: [network.Group((0, 1, 2, 3), model.l2)])
    job = torch_job(l2=0.5, learning_rate=0.2)
    assert worst_distance(job, train(Torch(), job)) > TOLERATED


def test_divergence_of_a_logistic_regression_shows_in_the_losses_or_the_weights() -> None:
    job = torch_job(kind="logreg", optimizer="sgd", learning_rate=1e38, schedule="constant", epochs=9)
    watch = train(Torch(), job)
    numbers = [*np.array(watch.losses, float), *flatten(watch.snapshots[-1][2])]
    assert not np.isfinite(numbers).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_refused_with_a_reason_if_there_is_none() -> None:
    with pytest.raises(Refused, match=r'torch .* (has no CUDA|finds no GPU on this machine); use device = "cpu"'):
        train(Torch(), torch_job("cuda"))


@GPU
def test_it_reports_the_gpus_utilisation_and_memory() -> None:
    watch = train(Torch(), torch_job("cuda"))
    assert watch.phases == ["import", "ship", "compile"]
    assert 0 < watch.counts["gpu_busy"] <= 1
    assert watch.counts["gpu_memory_bytes"] > 0


def trial(model: str = "mlp", **params: Any) -> Trial:
    return make_trial("torch", model, **{"device": "cpu", "precision": "float32", **params})


def test_unsupported_trials_are_refused_with_a_reason() -> None:
    engine = Torch()
    assert engine.refuses(trial()) is None
    assert engine.refuses(trial(device="cuda", precision="tf32")) is None
    assert "only on a GPU" in str(engine.refuses(trial(precision="tf32")))
    assert "leave l2 at 0" in str(engine.refuses(trial("logreg", l2=0.1)))


@GPU
def test_tf32_is_distinguished_from_exact_arithmetic_and_within_tolerance() -> None:
    job = torch_job("cuda", data=pictures(2000, 784), hidden=(800,), batch_size=256)
    job.params = {**job.params, "precision": "tf32"}
    assert EXACT / 10 < max(distances(job, train(Torch(), job)).values()) <= TOLERATED
