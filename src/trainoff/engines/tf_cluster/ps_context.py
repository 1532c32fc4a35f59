"""What every mode of tf-ps uses: the job, the parameters on their servers, and the gradients that workers compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient, Report
from trainoff.engines.shared.recovery import Checkpoint, CheckpointWriter
from trainoff.engines.shared.shipping import LEVELS
from trainoff.engines.tensorflow.network import MEMORY, differentiate, step_numbers, update
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

    @property
    def state(self) -> list[Tensor]:
        """All variables that a step changes."""
        return [part for each in self.store.variables for part in each.state]

    def weights(self) -> Weights:
        """Return the current weights."""
        with self.tf.device(COORDINATOR):
            return [part.numpy() for part in self.store.pull_all()]

    def step_done(self, step: int, loss: float) -> None:
        """Report a step to the driver, and write a checkpoint if one is due."""
        self.checkpoints.step_done(self.control, self.job.order, step, loss, self.weights, lambda: self.state)


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


def build_gradient_step(
    tf: Any, worker: Any, rows: Tensor, before: Sequence[Tensor] = ()
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Build a worker's part of a step: take the rows, pull the weights after `before`, differentiate.

    Returns the loss and the seconds it takes, what was pulled, and the gradients.
    """
    batch = worker.take(rows)
    with tf.control_dependencies(list(before)):
        pulled = worker.pull(batch)
    start = time_after(tf, [*batch, *pulled])
    with tf.control_dependencies([start]):
        loss, gradients = worker.gradients(pulled, batch)
    figures = [tf.cast(loss, tf.float64), time_after(tf, [loss, *gradients]) - start]
    return figures, pulled, gradients


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


class ServerVariable:
    """Numbers on a parameter server, and the state of their optimizer."""

    def __init__(self, tf: Any, job: Job, server: int, values: NDArray[np.float32], span: Span = (0, 0)) -> None:
        self._tf, self._momentum = tf, job.params["momentum"]
        self.server, self.span = server, span
        zeros = [np.zeros_like(values)] * MEMORY[job.params["optimizer"]]
        self.initial = [values, *zeros]  # of `state`
        with tf.device(server_device(server)):
            self.variable = tf.Variable(values)
            self._slots = [tf.Variable(tf.zeros_like(self.variable)) for _ in zeros]
        self.state = [self.variable, *self._slots]  # all that a step changes

    def push(self, gradient: Tensor, scalars: Tensor) -> Tensor:
        """Let the server update the numbers by their gradient; returns the operation."""
        with self._tf.device(server_device(self.server)):
            return update(self._tf, self.variable, self._slots, gradient, scalars, self._momentum)


class ParameterStore:
    """All weights as shards. `parts` are the spans into which the workers divide each weight; by default one."""

    def __init__(self, tf: Any, job: Job, servers: int, parts: Sequence[Sequence[Span]] | None = None) -> None:
        self._tf = tf
        shapes = [part.shape for part in job.weights]
        places = place_shards(shapes, parts or [[(0, shape[-1])] for shape in shapes], servers)
        self.shards: dict[str, list[ServerVariable]] = {}
        for (name, weight), placed in zip(job.model.by_name(job.weights).items(), places, strict=True):
            self.shards[name] = [
                ServerVariable(tf, job, server, np.ascontiguousarray(weight[..., slice(*span)]), span)
                for span, server in placed
            ]
        self.variables = [shard for shards in self.shards.values() for shard in shards]

    def pull(self, weight: str, span: Span | None = None) -> Tensor:
        """Return one weight, or a span of it, as a tensor on the device that the graph is built for."""
        parts = [self._tf.identity(shard.variable.read_value()) for shard in self._within(weight, span)]
        return parts[0] if len(parts) == 1 else self._tf.concat(parts, -1)

    def push(self, weight: str, gradient: Tensor, scalars: Tensor, span: Span | None = None) -> list[Tensor]:
        """Let the servers update one weight, or a span of it, by its gradient; returns the operations."""
        shards = self._within(weight, span)
        sizes = [shard.span[1] - shard.span[0] for shard in shards]
        parts = self._tf.split(gradient, sizes, -1) if len(shards) > 1 else [gradient]
        return [shard.push(part, scalars) for shard, part in zip(shards, parts, strict=True)]

    def _within(self, weight: str, span: Span | None) -> list[ServerVariable]:
        shards = self.shards[weight]
        first, last = span or (0, shards[-1].span[1])
        return [shard for shard in shards if first <= shard.span[0] and shard.span[1] <= last]

    def pull_all(self) -> list[Tensor]:
        """Return all weights, on the device that the graph is built for."""
        return [self.pull(name) for name in self.shards]


class PackedParameters:
    """All weights as one vector per server, for workers that always need all of them."""

    def __init__(self, tf: Any, job: Job, servers: int) -> None:
        self._tf = tf
        self._shapes = [part.shape for part in job.weights]
        placed = place_shards(self._shapes, [[(0, shape[-1])] for shape in self._shapes], servers)
        shards: list[list[tuple[int, Span]]] = [[] for _ in range(servers)]
        for weight, spans in enumerate(placed):
            for span, server in spans:
                shards[server].append((weight, span))
        # What each vector holds, one after the other; the last servers may have nothing.
        self._shards = [each for each in shards if each]
        self.variables: list[ServerVariable] = []
        for server, held in enumerate(self._shards):
            vector = np.concatenate([job.weights[weight][..., slice(*span)].ravel() for weight, span in held])
            self.variables.append(ServerVariable(tf, job, server, vector))

    def pull_all(self) -> list[Tensor]:
        """Return all weights, on the device that the graph is built for."""
        tf = self._tf
        vectors = [tf.identity(each.variable.read_value()) for each in self.variables]
        parts: list[list[Tensor]] = [[] for _ in self._shapes]
        for vector, shards in zip(vectors, self._shards, strict=True):
            shapes = [(*self._shapes[weight][:-1], last - first) for weight, (first, last) in shards]
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


class DenseWorker:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: PackedParameters, index: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._x, self._y = (load(tf, part, worker_device(index)) for part in (job.data.x_train, job.data.y_train))
        self._buffers: list[Tensor] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """Return the rows of a batch, from the worker's memory."""
        return [take(self._tf, self._x, rows), self._tf.gather(self._y, rows)]

    def pull(self, batch: list[Tensor]) -> list[Tensor]:
        """Return the weights, from the servers."""
        return self._store.pull_all()

    def gradients(self, weights: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the mean loss of the batch, and its gradient as one vector per server."""
        loss, gradient = differentiate(self._tf, self._model, weights, *batch)
        return loss, self._store.pack(gradient)

    def push(self, gradients: list[Tensor], weights: list[Tensor], scalars: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        return [each.push(part, scalars) for each, part in zip(self._store.variables, gradients, strict=True)]

    def create_buffers(self) -> None:
        """Create buffers on the servers for this worker's gradients, which wait there for those of the others."""
        for each in self._store.variables:
            with self._tf.device(server_device(each.server)):
                self._buffers.append(self._tf.Variable(self._tf.zeros_like(each.variable)))

    def write_buffers(self, gradients: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Write the gradients into the buffers."""
        done = []
        for server, (buffer, gradient) in enumerate(zip(self._buffers, gradients, strict=True)):
            with self._tf.device(server_device(server)):
                done.append(buffer.assign(gradient, read_value=False))
        return done

    @staticmethod
    def apply(workers: list[DenseWorker], shares: Tensor, scalars: Tensor) -> list[Tensor]:
        """Make one step by the stored gradients of all workers, weighted by their shares, on the servers."""
        tf, done = workers[0]._tf, []
        for place, vector in enumerate(workers[0]._store.variables):
            with tf.device(server_device(vector.server)):
                # A worker that was left out may be writing to its buffer now; none of that counts.
                parts = [tf.math.multiply_no_nan(each._buffers[place], shares[at]) for at, each in enumerate(workers)]
                mean = tf.add_n(parts)
            done.append(vector.push(mean, scalars))
        return done


class SparseWorker:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: ParameterStore, index: int) -> None:
        self._tf, self._store = tf, store
        x = job.data.x_train
        parts = (x.starts, x.columns, x.values, job.data.y_train)
        self._starts, self._columns, self._values, self._y = (load(tf, part, worker_device(index)) for part in parts)
        # The bias, then the features, server by server.
        self._shards = (store.shards["bias"][0], *store.shards["weight"])
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """Return a batch: the features it touches, for each non-zero its feature, value and row, and the labels."""
        tf = self._tf
        begins, ends = tf.gather(self._starts, rows), tf.gather(self._starts, rows + 1)
        counts = ends - begins
        before = tf.cumsum(counts, exclusive=True)
        places = tf.repeat(begins - before, counts) + tf.range(tf.reduce_sum(counts))
        owners = tf.repeat(tf.range(tf.size(rows)), counts)
        touched, which = tf.unique(tf.gather(self._columns, places))
        y = tf.cast(tf.gather(self._y, rows), tf.float32)
        return [touched, which, tf.gather(self._values, places), owners, y]

    def pull(self, batch: list[Tensor]) -> list[Tensor]:
        """Return the bias, the touched features of each server, their weights, and their places in the batch."""
        tf, shards, touched = self._tf, self._store.shards["weight"], batch[0]
        bias = self._store.pull("bias")
        if len(shards) == 1:
            return [bias, touched, tf.identity(shards[0].variable.sparse_read(touched))]
        home = tf.reduce_sum([tf.cast(touched >= shard.span[0], tf.int32) for shard in shards[1:]], 0)
        places = tf.dynamic_partition(tf.range(tf.size(touched)), home, len(shards))
        weights, features = [], []
        for shard, place in zip(shards, places, strict=True):
            features.append(tf.gather(touched, place) - shard.span[0])
            weights.append(tf.identity(shard.variable.sparse_read(features[-1])))
        return [bias, *features, tf.dynamic_stitch(places, weights), *places]

    def gradients(self, pulled: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the mean loss and its gradients: by the bias, and by the touched features, server by server."""
        tf, servers = self._tf, len(self._store.shards["weight"])
        touched, which, values, owners, y = batch
        bias, weights, places = pulled[0], pulled[1 + servers], pulled[2 + servers :]
        z = tf.math.unsorted_segment_sum(tf.gather(weights, which) * values, owners, tf.size(y)) + bias
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        errors = (tf.sigmoid(z) - y) / tf.cast(tf.size(y), tf.float32)
        gradients = tf.math.unsorted_segment_sum(tf.gather(errors, owners) * values, which, tf.size(touched))
        parts = [tf.gather(gradients, place) for place in places] or [gradients]
        return loss, [tf.reduce_sum(errors, keepdims=True), *parts]

    def push(self, gradients: list[Tensor], pulled: list[Tensor], scalars: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        tf, store = self._tf, self._store
        done = store.push("bias", gradients[0], scalars)
        for shard, features, part in zip(store.shards["weight"], pulled[1:], gradients[1:], strict=False):
            with tf.device(server_device(shard.server)):
                done.append(scatter_sub(tf, shard.variable, features, scalars[0] * part))
        return done

    def create_buffers(self) -> None:
        """Create buffers on the servers for this worker's gradients: as long as a batch needs, never all features."""
        tf = self._tf
        for shard in self._shards:
            with tf.device(server_device(shard.server)):
                features = tf.Variable(tf.zeros([0], tf.int32), shape=[None])
                self._buffers.append((features, tf.Variable(tf.zeros([0]), shape=[None])))

    def write_buffers(self, gradients: list[Tensor], pulled: list[Tensor]) -> list[Tensor]:
        """Write the gradients into the buffers."""
        done = []
        touched = [self._tf.zeros([1], self._tf.int32), *pulled[1 : len(self._shards)]]
        for shard, (features, buffer), which, part in zip(self._shards, self._buffers, touched, gradients, strict=True):
            with self._tf.device(server_device(shard.server)):
                done += [features.assign(which, read_value=False), buffer.assign(part, read_value=False)]
        return done

    @staticmethod
    def apply(workers: list[SparseWorker], shares: Tensor, scalars: Tensor) -> list[Tensor]:
        """Make one step by the stored gradients of all workers, weighted by their shares, on the servers."""
        done = []
        for place, shard in enumerate(workers[0]._shards):
            with workers[0]._tf.device(server_device(shard.server)):
                for index, worker in enumerate(workers):
                    done.append(worker._apply_buffer(place, shard.variable, scalars[0] * shares[index]))
        return done

    def _apply_buffer(self, place: int, variable: Tensor, rate: Tensor) -> Tensor:
        """Apply one buffer; without a share nothing, because the worker may be writing to it now."""
        tf, (features, gradients) = self._tf, self._buffers[place]

        def move() -> Tensor:
            moves = rate * gradients.read_value()
            with tf.control_dependencies([scatter_sub(tf, variable, features.read_value(), moves)]):
                return tf.constant(True)

        return tf.cond(rate > 0, move, lambda: tf.constant(False))


def scatter_sub(tf: Any, variable: Tensor, features: Tensor, moves: Tensor) -> Tensor:
    """Subtract from the weights of some features."""
    return tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=features, updates=moves)


CHUNK = 16 * 2**20  # bytes that are read at a time


def take(tf: Any, data: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of what `load` has loaded as numbers; pictures are held as bytes."""
    taken = tf.gather(data, rows)
    return tf.cast(taken, tf.float32) / LEVELS if taken.dtype == tf.uint8 else taken


def load(tf: Any, source: Any, device: str) -> Tensor:
    """Return a variable on a device with the content of an `InFile`, which the process there reads and decodes."""
    dtype = np.dtype(source.dtype)
    width = prod(source.shape[1:]) * dtype.itemsize
    behind = Path(source.path).stat().st_size - source.offset
    with tf.device(device):
        variable = tf.Variable(tf.zeros(source.shape, dtype))
        tf.gather(variable, [0]).numpy()  # graphs do not wait for assignments

    def read(first: Tensor, last: Tensor) -> Tensor:
        with tf.device(device):
            before, after = source.offset + first * width, behind - last * width
            record = tf.data.FixedLengthRecordDataset(source.path, (last - first) * width, before, after)
            values = tf.io.decode_raw(record.get_single_element(), dtype)
            part = tf.reshape(values, [-1, *source.shape[1:]])
            places = tf.range(tf.cast(first, tf.int32), tf.cast(last, tf.int32))
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=places, updates=part)
            return tf.identity(last)

    read = tf.function(read, [tf.TensorSpec([], tf.int64)] * 2, autograph=False)
    step = max(1, CHUNK // width)
    for first in range(0, source.shape[0], step):
        read(first, min(first + step, source.shape[0]))
    return variable
