"""What every mode of tf-ps works with, and the time that it takes the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import Leader, Report
from trainoff.engines.shared.recovery import Keeper
from trainoff.engines.tensorflow.network import step_numbers
from trainoff.engines.tf_cluster.packed import Packed
from trainoff.engines.tf_cluster.store import Store

HERE = "/job:chief/replica:0/task:0/device:CPU:0"  # the coordinator
FIRST_S = 60.0  # how long the first update of a worker may take
STUCK_S = 10.0  # without a sign of life a worker is given up after this time ...
STUCK_STEPS = 20  # ... or after so many of its slowest steps, if that is longer

Tensor = Any


@dataclass
class Scene:
    """The job, its variables, the line to the driver, and where checkpoints go. Its rows are places in files."""

    tf: Any
    job: Job
    store: Store | Packed
    leader: Leader
    keeper: Keeper

    def numbers(self, step: int) -> tuple[float, float]:
        """The rate and Adam's epsilon of a step."""
        return step_numbers(self.job.params["optimizer"], float(self.job.rates[step - 1]), step)


@dataclass
class Spent:
    """Seconds that each worker computed and waited for transfers, and how many updates are its own."""

    workers: int
    computing: list[float] = field(init=False)
    communicating: list[float] = field(init=False)
    updates: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.computing, self.communicating = [0.0] * self.workers, [0.0] * self.workers
        self.updates = [0] * self.workers

    def book(self, worker: int, computing: float, whole: float) -> None:
        """An update, and how long it took; what it did not compute, it communicated."""
        self.computing[worker] += computing
        self.communicating[worker] += whole - computing
        self.updates[worker] += 1

    def report(self, counts: Mapping[str, float], **more: dict[str, float]) -> Report:
        """For the driver; the rest of the training time the workers waited, which only the driver can add."""
        parts: dict[str, Sequence[float]] = {
            "computing_s": self.computing,
            "communicating_s": self.communicating,
            "updates": self.updates,
        }
        by_worker = {name: {f"worker-{at}": value for at, value in enumerate(part)} for name, part in parts.items()}
        return {"counts": dict(counts), "breakdowns": {**by_worker, **more}}


def after(tf: Any, done: Sequence[Tensor]) -> Tensor:
    """The time when all of this is done, by the clock of the device that the graph is being built for."""
    with tf.control_dependencies(list(done)):
        return tf.timestamp()


@dataclass(frozen=True)
class Worked:
    """The part of a graph in which one worker finds the slopes of its rows, and how long that takes it."""

    loss: Tensor
    pulled: list[Tensor]
    slopes: list[Tensor]
    computing: Tensor


def work(tf: Any, learner: Any, rows: Tensor, before: Sequence[Tensor] = ()) -> Worked:
    """Build it for the current device: take the rows, pull the weights after what must come before, compute."""
    batch = learner.take(rows)
    with tf.control_dependencies(list(before)):
        pulled = learner.pull(batch)
    here = after(tf, [*batch, *pulled])
    with tf.control_dependencies([here]):
        loss, slopes = learner.slopes(pulled, batch)
    return Worked(tf.cast(loss, tf.float64), pulled, slopes, after(tf, [loss, *slopes]) - here)


def lost(tf: Any, error: Exception) -> bool:
    """Whether an error means that a worker is gone, and not that it was asked for something impossible."""
    mistakes = (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError, tf.errors.UnimplementedError)
    return isinstance(error, tf.errors.OpError) and not isinstance(error, mistakes)


def settle(variable: Tensor, value: Any) -> None:
    """Give a variable on another machine its value, and wait until it has it: graphs do not wait for assignments."""
    variable.assign(value)
    variable.numpy()


def row_numbers(rows: Any) -> Any:
    """Rows as the workers are told them."""
    return rows.astype(np.int32)
