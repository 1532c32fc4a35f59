"""Small trainings for tests of engines, and their distance from the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainoff.clusters import Cluster
from trainoff.data import Csr, Data, Order
from trainoff.engines import Engine, Job
from trainoff.models import Cnn, Logreg, Mlp, Model, Weights, flatten, initial_weights, rates, trajectory
from trainoff.study import Trial

OPTIMIZERS = {"sgd": 0.2, "momentum": 0.05, "adam": 0.002}  # each with a learning rate that suits it


@dataclass
class RecordingWatch:
    """A watch that keeps phases, losses and snapshots in lists.

    It wants snapshots at steps 1, 20 and the last; `stop_at` ends the training after that step.
    """

    steps: int  # of the whole training
    stop_at: int | None = None
    should_stop: bool = False
    phases: list[str] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    snapshots: list[tuple[int, int, Weights]] = field(default_factory=list)  # step, samples seen, weights
    counts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None:
        assert step == len(self.losses) + 1, "every step is reported once, in order"
        self.losses.append(loss)
        self.should_stop = self.stop_at is not None and step >= self.stop_at

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        wanted = self.should_stop or len(self.losses) in (1, 20, self.steps)
        if wanted and settle:
            settle()
        return wanted

    def snapshot(self, samples_seen: int, weights: Weights) -> None:
        weights = [part.copy() for part in weights]  # as the real watch does
        self.snapshots.append((len(self.losses), samples_seen, weights))

    def count(self, name: str, value: float) -> None:
        self.counts[name] = value


@cache
def pictures(rows: int = 330, pixels: int = 64, classes: int = 10) -> Data:
    """Return noisy pictures of `classes` shapes, mostly black as handwritten digits are."""
    rng = np.random.default_rng(7)
    shapes = np.maximum(rng.standard_normal((classes, pixels)), 0)
    y = rng.integers(0, classes, 2 * rows)
    x = np.clip(shapes[y] / 3 + rng.standard_normal((2 * rows, pixels)) / 10, 0, 1).astype(np.float32)
    image = (isqrt(pixels), isqrt(pixels))
    return Data("pictures", x[:rows], y[:rows], x[rows:], y[rows:], classes, "pictures-1", image)


@cache
def clicks(rows: int = 330, width: int = 500) -> Data:
    """Return sparse rows of two classes, with zero to twelve non-zeros each; few of the features are frequent."""
    rng = np.random.default_rng(8)
    counts = rng.integers(0, 13, 2 * rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = np.concatenate([np.sort(rng.choice(width, size, replace=False)) for size in counts])
    columns = (columns * columns // width).astype(np.int32)  # the same column twice in a row is allowed
    x = Csr(starts, columns, rng.uniform(0.1, 1, len(columns)).astype(np.float32), width)
    true_weights = rng.standard_normal(width)
    odds = np.bincount(x.row_numbers(), x.values * true_weights[x.columns], minlength=len(x))
    y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-2 * odds))).astype(np.int64)
    return Data("clicks", x[:rows], y[:rows], x[rows:], y[rows:], 2, "clicks-1")


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
    kind: str = "mlp",
    cores: float = 1,
    **params: Any,
) -> Job:
    """Return a job on small pictures, or clicks; 330 rows in batches of 32 leave a partial batch of 10 at step 11.

    `params` are the engine's knobs.
    """
    data = data or (clicks() if kind == "logreg" else pictures())
    model = make_model(kind, data, hidden, activation, l2)
    order = Order(data.name, len(data.x_train), batch_size, epochs, seed)
    return Job(
        data=data,
        model=model,
        weights=initial_weights(model, seed),
        order=order,
        rates=rates(schedule, learning_rate or OPTIMIZERS[optimizer], order.steps),
        params={"optimizer": optimizer, "momentum": 0.9, "stop": None, **params},
        mode="single",
        workers=1,
        cores=cores,
        memory_gb=None,
        cluster=cast(Cluster, None),  # single-node engines start no processes
        folder=Path(),
    )


def make_model(kind: str, data: Data, hidden: tuple[int, ...], activation: str, l2: float) -> Model:
    """Return the model of a kind for the data; a cnn has one convolution, or two if the picture is large."""
    if kind == "logreg":
        return Logreg(data.x_train.shape[1], l2=l2)
    if kind == "cnn":
        assert data.image
        channels, kernel = ((8, 16), 5) if data.image[0] >= 16 else ((6,), 3)
        return Cnn(data.image, channels, kernel, (*hidden, data.classes), activation, l2)
    return Mlp((data.x_train.shape[1], *hidden, data.classes), activation, l2)


def make_trial(engine: str, model: str = "mlp", **params: Any) -> Trial:
    """Return a trial, as `Engine.refuses` is called with it."""
    given = {"optimizer": "sgd", "l2": 0.0, "batch_size": 32, **params}
    return Trial("test", engine, f"test-{model}", "single", 1, 1.0, None, "processes", given, 1, model=model)


def train(engine: Engine, job: Job, **watching: Any) -> RecordingWatch:
    """Open the engine and train; return the watch."""
    watch = RecordingWatch(steps=job.order.steps, **watching)
    engine.open(job, watch)
    engine.train(job, watch)
    return watch


_references: dict[Any, tuple[Data, dict[int, Weights]]] = {}  # keeping the data keeps their ids unique


def cached_reference(job: Job) -> dict[int, Weights]:
    """Return the reference's weights, computed once for all engines that are compared with it."""
    start = [part.tobytes() for part in job.weights]
    optimizer = job.params["optimizer"], job.params["momentum"]
    key = id(job.data), repr(job.model), job.order, *start, *optimizer, job.rates.tobytes()
    if key not in _references:
        _references[key] = job.data, reference(job)
    return _references[key][1]


def reference(job: Job, **other: Any) -> dict[int, Weights]:
    """Return the reference's weights at the certified steps; `other` replaces parts of its description."""
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
    """Return |w - w_ref| / |w_ref - w_0|: the distance from the reference, relative to how far the reference moved."""
    start = flatten(job.weights).astype(np.float64)
    there = flatten(exact[step])
    return float(np.linalg.norm(flatten(weights) - there) / np.linalg.norm(there - start))


def distances(job: Job, watch: RecordingWatch) -> dict[int, float]:
    """Return the distance from the reference at each certified step."""
    exact = cached_reference(job)
    seen = {step: weights for step, _, weights in watch.snapshots}
    return {step: distance(job, step, seen[step], exact) for step in exact}


def worst_distance(job: Job, watch: RecordingWatch) -> float:
    """Return the largest distance from the reference at the certified steps, which are 1 and 20."""
    found = distances(job, watch)
    assert sorted(found) == [1, 20]
    return max(found.values())
