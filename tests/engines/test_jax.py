"""The jax engine against the reference, also with mistakes put into it on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, RecordingWatch, make_job, pictures, train, worst_distance
from trainoff.engines import jax as adapter
from trainoff.engines.jax import Jax
from trainoff.models import fingerprint

EXACT, TOLERATED = 1e-3, 5e-3
ADAM = [pytest.param(each, marks=() if each == "adam" else pytest.mark.soak) for each in OPTIMIZERS]


@pytest.mark.parametrize(("optimizer", "kind"), [("sgd", "mlp"), ("momentum", "mlp"), ("sgd", "cnn")])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = adapter.mean_loss
    monkeypatch.setattr(adapter, "mean_loss", lambda *given: 1.01 * correct(*given))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst_distance(job, train(Jax(), job)) > TOLERATED


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [("sgd", "mlp"), pytest.param("momentum", "mlp", marks=pytest.mark.soak), ("adam", "mlp"), ("adam", "cnn")],
)
def test_a_lost_row_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = adapter.mean_loss
    monkeypatch.setattr(adapter, "mean_loss", lambda weights, model, x, y: correct(weights, model, x[:-1], y[:-1]))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst_distance(job, train(Jax(), job)) > TOLERATED


def test_a_learning_rate_inside_the_velocity_is_noticed_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(w: Any, memory: list[Any], g: Any, rate: Any, step: Any, mu: float) -> tuple[Any, list[Any]]:
        velocity = mu * memory[0] - rate * g
        return w + velocity, [velocity]

    monkeypatch.setattr(adapter, "update", inside)
    changing, constant = make_job(schedule="one-cycle"), make_job(schedule="constant")
    assert worst_distance(changing, train(Jax(), changing)) > TOLERATED
    assert worst_distance(constant, train(Jax(), constant)) <= EXACT


@pytest.mark.parametrize("optimizer", ADAM)
def test_opening_compiles_and_changes_neither_weights_nor_optimiser(optimizer: str) -> None:
    job = make_job(optimizer=optimizer)
    engine, watch = Jax(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    weights, memory = engine._state
    assert watch.phases == ["import", "compile"]
    assert watch.counts == {"threads": 1}
    assert fingerprint([np.asarray(weights[name]) for name, _ in job.weights.items()]) == fingerprint(job.weights)
    assert [len(parts) for parts in memory.values()] == [adapter.MEMORY[optimizer]] * 4
    assert not any(np.asarray(part).any() for parts in memory.values() for part in parts)


@pytest.mark.parametrize("optimizer", ADAM)
def test_training_and_predicting_compile_nothing(optimizer: str) -> None:
    job = make_job(pictures(1100), optimizer=optimizer)  # the last batch and the last part of the test rows are partial
    engine, watch = Jax(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    opened = engine._step._cache_size(), engine._labels._cache_size()
    engine.train(job, watch)
    engine.predict(job.data.x_test)
    assert opened == (2, 2)
    assert (engine._step._cache_size(), engine._labels._cache_size()) == opened


@pytest.mark.parametrize(("cores", "threads"), [pytest.param(1, 1, marks=pytest.mark.soak), (3.5, 4)])
def test_it_uses_as_many_threads_as_cores(cores: float, threads: int) -> None:
    code = (
        "from pathlib import Path\n"
        "from helpers.training import make_job, train\n"
        "from trainoff.engines.jax import Jax\n"
        f"watch = train(Jax(), make_job(cores={cores}, epochs=1))\n"
        "names = [path.read_text() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "print(watch.counts['threads'], sum('XLAEigen' in name for name in names))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{threads} {threads}\n"
    assert ran.stderr == ""
