"""Small trainings for tests of engines: a job in one line, and its distance from the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainoff.clusters import Cluster
from trainoff.data import Data, Order
from trainoff.engines import Engine, Job
from trainoff.models import Mlp, Weights, flatten, initial_weights, rates, trajectory
from watching import QuietWatch

OPTIMIZERS = {"sgd": 0.2, "momentum": 0.05, "adam": 0.002}  # each with a learning rate that suits it


@cache
def pictures(rows: int = 330, pixels: int = 64, classes: int = 10) -> Data:
    """Noisy pictures of `classes` shapes, mostly black as handwritten digits are."""
    rng = np.random.default_rng(7)
    shapes = np.maximum(rng.standard_normal((classes, pixels)), 0)
    y = rng.integers(0, classes, 2 * rows)
    x = np.clip(shapes[y] / 3 + rng.standard_normal((2 * rows, pixels)) / 10, 0, 1).astype(np.float32)
    return Data("pictures", x[:rows], y[:rows], x[rows:], y[rows:], classes, "pictures-1")


def make_job(
    data: Data | None = None,
    hidden: tuple[int, ...] = (32,),
    activation: str = "relu",
    l2: float = 0.0,
    optimizer: str = "momentum",
    schedule: str = "one-cycle",
    batch_size: int = 32,
    epochs: int = 3,
    learning_rate: float | None = None,
    seed: int = 1,
) -> Job:
    """A job on small pictures; 330 rows in batches of 32 leave a partial batch of 10 at step 11."""
    data = data or pictures()
    model = Mlp((data.x_train.shape[1], *hidden, data.classes), activation, l2)
    order = Order(data.name, len(data.x_train), batch_size, epochs, seed)
    return Job(
        workload="pictures-mlp",
        data=data,
        model=model,
        weights=initial_weights(model, seed),
        order=order,
        rates=rates(schedule, learning_rate or OPTIMIZERS[optimizer], order.steps),
        params={"optimizer": optimizer, "momentum": 0.9},
        mode="single",
        workers=1,
        cores=1,
        memory_gb=None,
        cluster=cast(Cluster, None),  # single-node engines start no processes
        folder=Path(),
    )


def train(engine: Engine, job: Job, **watching: Any) -> QuietWatch:
    """Open the engine and train; returns what the watch saw."""
    watch = QuietWatch(steps=job.order.steps, **watching)
    engine.open(job, watch)
    engine.train(job, watch)
    return watch


def reference(job: Job, **other: Any) -> dict[int, Weights]:
    """The reference's weights at the certified steps; `other` replaces parts of its description."""
    given: dict[str, Any] = {
        "model": job.model,
        "weights": job.weights,
        "x": job.data.x_train,
        "y": job.data.y_train,
        "order": job.order,
        "optimizer": job.params["optimizer"],
        "momentum": job.params["momentum"],
        "rates": job.rates,
    }
    return trajectory(**(given | other))


def distance(job: Job, step: int, weights: Weights, exact: dict[int, Weights]) -> float:
    """|w - w_ref| / |w_ref - w_0|: how far the weights are from the reference, in steps of the reference."""
    start = flatten(job.weights).astype(np.float64)
    there = flatten(exact[step])
    return float(np.linalg.norm(flatten(weights) - there) / np.linalg.norm(there - start))


def distances(job: Job, watch: QuietWatch) -> dict[int, float]:
    """The distance at each certified step that the watch has seen."""
    exact = reference(job)
    seen = {step: weights for step, _, weights in watch.snapshots}
    return {step: distance(job, step, seen[step], exact) for step in exact}
