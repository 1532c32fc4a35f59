"""What every mode of tf-ps uses: the job, the seconds of each worker, and the parameters on their servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient, Report
from trainoff.engines.shared.recovery import Checkpoint, CheckpointWriter
from trainoff.engines.tensorflow.network import MEMORY, step_numbers, update
from trainoff.models import Weights

COORDINATOR = "/job:chief/replica:0/task:0/device:CPU:0"
MIN_SPLIT = 1024  # numbers; a smaller variable stays whole

Tensor = Any
Span = tuple[int, int]  # from and to, along the last axis


def server_device(index: int) -> str:
    """Return TensorFlow's name of a parameter server."""
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


def worker_device(index: int) -> str:
    """Return TensorFlow's name of a worker."""
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


@dataclass
class PsContext:
    """The job (its rows are files), its variables, the connection to the driver, and the checkpoints."""

    tf: Any
    job: Job
    store: ParameterStore | PackedParameters
    control: ControlClient
    checkpoints: CheckpointWriter

    def scalars(self, step: int) -> tuple[float, float]:
        """Return the learning rate and Adam's epsilon of a step."""
        return step_numbers(self.job.params["optimizer"], float(self.job.rates[step - 1]), step)

    def first_step(self, resume: Checkpoint | None) -> int:
        """Return the first step after a checkpoint; no snapshot is due for the steps before it."""
        done = len(resume.done) if resume else 0
        self.control.snapshot_schedule.taken(self.job.order.samples_after(done))
        return done + 1

    def pause_due(self, updates: int, samples: int) -> bool:
        """Return whether a snapshot or a checkpoint is due, during which no worker may compute."""
        return self.control.snapshot_schedule.wanted(updates, samples) or self.checkpoints.due(updates)

    def step_done(self, step: int, loss: float) -> None:
        """Report a step to the driver, and write a checkpoint if one is due."""
        weights, state = self.store.weights, lambda: self.store.state
        self.checkpoints.step_done(self.control, self.job.order, step, loss, weights, state)


class WorkerSeconds:
    """The seconds that each worker computed and communicated, and the number of its updates."""

    def __init__(self, workers: int) -> None:
        self._computing, self._communicating = [0.0] * workers, [0.0] * workers
        self._updates = [0] * workers

    def add(self, worker: int, computing: float, total: float) -> None:
        """Add one update of a worker: the seconds it computed, and those it took in all."""
        self._computing[worker] += computing
        self._communicating[worker] += total - computing
        self._updates[worker] += 1

    def report(self, counts: Mapping[str, float], **breakdowns: dict[str, float]) -> Report:
        """Return the report for the driver, which adds the rest of the training time as waiting."""
        figures: dict[str, Sequence[float]] = {
            "computing_s": self._computing,
            "communicating_s": self._communicating,
            "updates": self._updates,
        }
        by_worker = {name: {f"worker-{at}": value for at, value in enumerate(part)} for name, part in figures.items()}
        return {"counts": dict(counts), "breakdowns": {**by_worker, **breakdowns}}


def time_after(tf: Any, operations: Sequence[Tensor]) -> Tensor:
    """Return the time when all operations are done, by the clock of the device that the graph is built for."""
    with tf.control_dependencies(list(operations)):
        return tf.timestamp()


@dataclass(frozen=True)
class GradientStep:
    """The part of a graph in which one worker computes the gradients of its rows, with the seconds it takes."""

    loss: Tensor
    pulled: list[Tensor]
    gradients: list[Tensor]
    computing: Tensor


def build_gradient_step(tf: Any, worker: Any, rows: Tensor, before: Sequence[Tensor] = ()) -> GradientStep:
    """Build it for the current device: take the rows, pull the weights after `before`, differentiate."""
    batch = worker.take(rows)
    with tf.control_dependencies(list(before)):
        pulled = worker.pull(batch)
    start = time_after(tf, [*batch, *pulled])
    with tf.control_dependencies([start]):
        loss, gradients = worker.gradients(pulled, batch)
    return GradientStep(tf.cast(loss, tf.float64), pulled, gradients, time_after(tf, [loss, *gradients]) - start)


def means_lost_worker(tf: Any, error: Exception) -> bool:
    """Return whether an error means that a worker is gone, and not that an operation was impossible."""
    mistakes = (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError, tf.errors.UnimplementedError)
    return isinstance(error, tf.errors.OpError) and not isinstance(error, mistakes)


def assign(variable: Tensor, value: Any) -> None:
    """Assign a value to a remote variable and wait until it is there: graphs do not wait for assignments."""
    variable.assign(value)
    variable.numpy()


def place_shards(
    shapes: Sequence[tuple[int, ...]], parts: Sequence[Sequence[Span]], servers: int
) -> list[list[tuple[Span, int]]]:
    """Return the shards of every weight and their servers; small ones go to the server with the least so far."""
    load = [0] * servers
    placed: list[list[tuple[Span, int]]] = []
    for shape, spans in zip(shapes, parts, strict=True):
        depth = prod(shape[:-1])
        shards = []
        for first, last in spans:
            count = servers if (last - first) * depth >= MIN_SPLIT and last - first >= servers else 1
            edges = [first + (last - first) * index // count for index in range(count + 1)]
            for index, span in enumerate(pairwise(edges)):
                server = index if count > 1 else min(range(servers), key=load.__getitem__)
                load[server] += (span[1] - span[0]) * depth
                shards.append((span, server))
        placed.append(shards)
    return placed


@dataclass
class Shard:
    """A part of one weight on one server, with its optimizer slots."""

    span: Span
    server: int
    variable: Tensor
    slots: list[Tensor] = field(default_factory=list)


class ParameterStore:
    """All weights as shards. `parts` are the spans into which the workers divide each weight; by default one."""

    def __init__(self, tf: Any, job: Job, servers: int, parts: Sequence[Sequence[Span]] | None = None) -> None:
        self._tf, self._momentum = tf, job.params["momentum"]
        slots = MEMORY[job.params["optimizer"]]
        shapes = [part.shape for part in job.weights]
        spans = parts or [[(0, shape[-1])] for shape in shapes]
        self.shards: dict[str, list[Shard]] = {}
        self.initial: list[NDArray[np.float32]] = []  # of `state`
        named = job.model.by_name(job.weights).items()
        for (name, weight), placed in zip(named, place_shards(shapes, spans, servers), strict=True):
            self.shards[name] = [self._make(weight, span, server, slots) for span, server in placed]

    def _make(self, weight: NDArray[np.float32], span: Span, server: int, slots: int) -> Shard:
        tf = self._tf
        part = np.ascontiguousarray(weight[..., slice(*span)])
        self.initial += [part, *(np.zeros_like(part) for _ in range(slots))]
        with tf.device(server_device(server)):
            variable = tf.Variable(part)
            return Shard(span, server, variable, [tf.Variable(tf.zeros_like(variable)) for _ in range(slots)])

    def pull(self, weight: str, span: Span | None = None) -> Tensor:
        """Return one weight, or a span of it, as a tensor on the device that the graph is built for."""
        parts = [self._tf.identity(shard.variable.read_value()) for shard in self._within(weight, span)]
        return parts[0] if len(parts) == 1 else self._tf.concat(parts, -1)

    def push(self, weight: str, gradient: Tensor, scalars: Tensor, span: Span | None = None) -> list[Tensor]:
        """Let the servers update one weight, or a span of it, by its gradient; returns the operations."""
        shards, done = self._within(weight, span), []
        sizes = [shard.span[1] - shard.span[0] for shard in shards]
        parts = self._tf.split(gradient, sizes, -1) if len(shards) > 1 else [gradient]
        for shard, part in zip(shards, parts, strict=True):
            with self._tf.device(server_device(shard.server)):
                done.append(update(self._tf, shard.variable, shard.slots, part, scalars, self._momentum))
        return done

    def _within(self, weight: str, span: Span | None) -> list[Shard]:
        shards = self.shards[weight]
        first, last = span or (0, shards[-1].span[1])
        return [shard for shard in shards if first <= shard.span[0] and shard.span[1] <= last]

    @property
    def state(self) -> list[Tensor]:
        """All variables that a step changes."""
        return [part for shards in self.shards.values() for shard in shards for part in (shard.variable, *shard.slots)]

    def weights(self) -> Weights:
        """Return the current weights."""
        return [np.concatenate([shard.variable.numpy() for shard in shards], -1) for shards in self.shards.values()]


class PackedParameters:
    """All weights as one vector per server, for workers that always need all of them."""

    def __init__(self, tf: Any, job: Job, servers: int) -> None:
        self._tf, self._momentum = tf, job.params["momentum"]
        self._shapes = [part.shape for part in job.weights]
        placed = place_shards(self._shapes, [[(0, shape[-1])] for shape in self._shapes], servers)
        shards: list[list[tuple[int, Span]]] = [[] for _ in range(servers)]
        for weight, spans in enumerate(placed):
            for span, server in spans:
                shards[server].append((weight, span))
        # What each vector holds, one after the other; the last servers may have nothing.
        self._shards = [each for each in shards if each]
        slots = MEMORY[job.params["optimizer"]]
        self.vectors: list[Tensor] = []
        self._slots: list[list[Tensor]] = []
        self.initial: list[NDArray[np.float32]] = []  # of `state`
        for server, held in enumerate(self._shards):
            vector = np.concatenate([job.weights[weight][..., slice(*span)].ravel() for weight, span in held])
            self.initial += [vector, *(np.zeros_like(vector) for _ in range(slots))]
            with tf.device(server_device(server)):
                self.vectors.append(tf.Variable(vector))
                self._slots.append([tf.Variable(tf.zeros_like(vector)) for _ in range(slots)])

    def _shape(self, weight: int, span: Span) -> tuple[int, ...]:
        return (*self._shapes[weight][:-1], span[1] - span[0])

    def pull(self) -> list[Tensor]:
        """Return all weights, on the device that the graph is built for."""
        tf = self._tf
        vectors = [tf.identity(vector.read_value()) for vector in self.vectors]
        parts: list[list[Tensor]] = [[] for _ in self._shapes]
        for vector, shards in zip(vectors, self._shards, strict=True):
            shapes = [self._shape(*shard) for shard in shards]
            for (weight, _), shape, part in zip(shards, shapes, tf.split(vector, [*map(prod, shapes)]), strict=True):
                parts[weight].append(tf.reshape(part, shape))
        return [each[0] if len(each) == 1 else tf.concat(each, -1) for each in parts]

    def pack(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return gradients as one vector for every server."""
        tf = self._tf
        return [
            tf.concat([tf.reshape(gradients[weight][..., slice(*span)], [-1]) for weight, span in shards], 0)
            for shards in self._shards
        ]

    def push(self, server: int, gradient: Tensor, scalars: Tensor) -> Tensor:
        """Let one server update its vector by the gradient; returns the operation."""
        with self._tf.device(server_device(server)):
            return update(self._tf, self.vectors[server], self._slots[server], gradient, scalars, self._momentum)

    @property
    def state(self) -> list[Tensor]:
        """All variables that a step changes."""
        return [part for vector, slots in zip(self.vectors, self._slots, strict=True) for part in (vector, *slots)]

    def weights(self) -> Weights:
        """Return the current weights."""
        parts: list[list[NDArray[np.float32]]] = [[] for _ in self._shapes]
        for vector, shards in zip(self.vectors, self._shards, strict=True):
            shapes = [self._shape(*shard) for shard in shards]
            pieces = np.split(vector.numpy(), np.cumsum([prod(shape) for shape in shapes])[:-1])
            for (weight, _), shape, piece in zip(shards, shapes, pieces, strict=True):
                parts[weight].append(piece.reshape(shape))
        return [np.concatenate(each, -1) for each in parts]
