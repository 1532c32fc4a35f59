"""What a worker of tf-ps computes: the gradients of its rows, dense or sparse, on the weights that it pulls."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.engines.contract import Job
from trainoff.engines.shared.shipping import LEVELS
from trainoff.engines.tensorflow.network import differentiate
from trainoff.engines.tf_cluster.ps_context import PackedParameters, ParameterStore, server_device, worker_device

Tensor = Any


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
        return self._store.pull()

    def gradients(self, weights: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the mean loss of the batch, and its gradient as one vector per server."""
        loss, gradient = differentiate(self._tf, self._model, weights, *batch)
        return loss, self._store.pack(gradient)

    def push(self, gradients: list[Tensor], weights: list[Tensor], scalars: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        return [self._store.push(server, gradient, scalars) for server, gradient in enumerate(gradients)]

    def create_buffers(self) -> None:
        """Create buffers on the servers for this worker's gradients, which wait there for those of the others."""
        for server, vector in enumerate(self._store.vectors):
            with self._tf.device(server_device(server)):
                self._buffers.append(self._tf.Variable(self._tf.zeros_like(vector)))

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
        tf, store, done = workers[0]._tf, workers[0]._store, []
        for server in range(len(store.vectors)):
            with tf.device(server_device(server)):
                # A worker that was left out may be writing to its buffer now; none of that counts.
                parts = [tf.math.multiply_no_nan(each._buffers[server], shares[at]) for at, each in enumerate(workers)]
                mean = tf.add_n(parts)
            done.append(store.push(server, mean, scalars))
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
