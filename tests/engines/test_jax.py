"""The jax engine: JAX's own gradients, held to the reference's mathematics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.training import OPTIMIZERS, RecordingWatch, distances, make_job, pictures, train
from trainoff.engines import Job
from trainoff.engines import jax as adapter
from trainoff.engines.jax import Jax
from trainoff.models import fingerprint

EXACT, TOLERATED = 1e-3, 5e-3
ADAM = [pytest.param(each, marks=() if each == "adam" else pytest.mark.soak) for each in OPTIMIZERS]


def worst(job: Job, watch: RecordingWatch) -> float:
    found = distances(job, watch)
    assert sorted(found) == [1, 20]
    return max(found.values())


@pytest.mark.parametrize(("optimizer", "kind"), [("sgd", "mlp"), ("momentum", "mlp"), ("sgd", "cnn")])
def test_a_gradient_off_by_one_per_cent_is_noticed(optimizer: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapter.mean_loss
    monkeypatch.setattr(adapter, "mean_loss", lambda *given: 1.01 * right(*given))
    job = make_job(kind=kind, optimizer=optimizer)
    assert worst(job, train(Jax(), job)) > TOLERATED


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [("sgd", "mlp"), pytest.param("momentum", "mlp", marks=pytest.mark.soak), ("adam", "mlp"), ("adam", "cnn")],
)
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


@pytest.mark.parametrize("optimizer", ADAM)
def test_opening_compiles_and_leaves_weights_and_optimiser_as_they_were(optimizer: str) -> None:
    job = make_job(optimizer=optimizer)
    engine, watch = Jax(), RecordingWatch(steps=job.order.steps)
    engine.open(job, watch)
    weights, memory = engine._state
    assert watch.phases == ["import", "compile"]
    assert watch.counts == {"threads": 1}
    assert fingerprint([np.asarray(part) for part in weights]) == fingerprint(job.weights)
    assert [len(parts) for parts in memory] == [adapter.MEMORY[optimizer]] * 4
    assert not any(np.asarray(part).any() for parts in memory for part in parts)


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
def test_the_threads_are_those_of_the_cores_in_a_process_of_its_own(cores: float, threads: int) -> None:
    code = (
        "from pathlib import Path\n"
        "from helpers.training import make_job, train\n"
        "from trainoff.engines.jax import Jax\n"
        f"watch = train(Jax(), make_job(cores={cores}, epochs=1))\n"
        "names = [path.read_text() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "print(watch.counts['threads'], sum('XLAEigen' in name for name in names))"
    )
    words = [sys.executable, "-c", code]
    ran = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{threads} {threads}\n"
    assert ran.stderr == ""
