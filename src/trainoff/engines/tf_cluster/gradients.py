"""What a worker of tf-ps computes: it pulls weights, takes its rows and finds the gradients, dense or sparse."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.engines.contract import Job
from trainoff.engines.shared.shipping import LEVELS
from trainoff.engines.tensorflow.network import differentiate
from trainoff.engines.tf_cluster.ps_context import PackedParameters, ParameterStore, server, worker

Tensor = Any


class DenseGradients:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: PackedParameters, number: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._x, self._y = (load(tf, part, worker(number)) for part in (job.data.x_train, job.data.y_train))
        self._kept: list[Tensor] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """The rows of a batch, out of the worker's memory."""
        return [take(self._tf, self._x, rows), self._tf.gather(self._y, rows)]

    def pull(self, batch: list[Tensor]) -> list[Tensor]:
        """The weights, from the servers."""
        return self._store.pull()

    def gradients(self, weights: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of the batch, and its gradient, server by server."""
        loss, gradient = differentiate(self._tf, self._model, weights, *batch)
        return loss, self._store.pack(gradient)

    def push(self, gradients: list[Tensor], weights: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        return [self._store.move(number, gradient, numbers) for number, gradient in enumerate(gradients)]

    def make_room(self) -> None:
        """Room on the servers for the gradients of this worker, where steps wait for those of the others."""
        for number, vector in enumerate(self._store.vectors):
            with self._tf.device(server(number)):
                self._kept.append(self._tf.Variable(self._tf.zeros_like(vector)))

    def keep(self, gradients: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Leave the gradients on the servers."""
        done = []
        for number, (room, gradient) in enumerate(zip(self._kept, gradients, strict=True)):
            with self._tf.device(server(number)):
                done.append(room.assign(gradient, read_value=False))
        return done

    @staticmethod
    def apply(crew: list[DenseGradients], shares: Tensor, numbers: Tensor) -> list[Tensor]:
        """One step by the gradients of all, each with its share. Built for the servers; nothing leaves them."""
        tf, store, done = crew[0]._tf, crew[0]._store, []
        for place in range(len(store.vectors)):
            with tf.device(server(place)):
                # Who was left out may be writing just now; whatever it is, nothing of it counts.
                parts = [tf.math.multiply_no_nan(each._kept[place], shares[at]) for at, each in enumerate(crew)]
                mean = tf.add_n(parts)
            done.append(store.move(place, mean, numbers))
        return done


class SparseGradients:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: ParameterStore, number: int) -> None:
        self._tf, self._store = tf, store
        x = job.data.x_train
        parts = (x.starts, x.columns, x.values, job.data.y_train)
        self._starts, self._columns, self._values, self._y = (load(tf, part, worker(number)) for part in parts)
        self._pieces = (store.pieces[1][0], *store.pieces[0])  # the bias, then the features, server by server
        self._kept: list[tuple[Tensor, Tensor]] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """The non-zeros of a batch: which features they touch, and for each non-zero its feature, value and row."""
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
        """The weights of the touched features with their numbers, server by server, and the bias."""
        tf, pieces, touched = self._tf, self._store.pieces[0], batch[0]
        bias = self._store.pull(1)
        if len(pieces) == 1:
            return [bias, touched, tf.identity(pieces[0].variable.sparse_read(touched))]
        home = tf.reduce_sum([tf.cast(touched >= piece.span[0], tf.int32) for piece in pieces[1:]], 0)
        places = tf.dynamic_partition(tf.range(tf.size(touched)), home, len(pieces))
        weights, asked = [], []
        for piece, place in zip(pieces, places, strict=True):
            asked.append(tf.gather(touched, place) - piece.span[0])
            weights.append(tf.identity(piece.variable.sparse_read(asked[-1])))
        return [bias, *asked, tf.dynamic_stitch(places, weights), *places]

    def gradients(self, pulled: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss, and its gradients: that of the bias, and those of the touched features, server by server."""
        tf, servers = self._tf, len(self._store.pieces[0])
        touched, which, values, owners, y = batch
        bias, weights, places = pulled[0], pulled[1 + servers], pulled[2 + servers :]
        z = tf.math.unsorted_segment_sum(tf.gather(weights, which) * values, owners, tf.size(y)) + bias
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        errors = (tf.sigmoid(z) - y) / tf.cast(tf.size(y), tf.float32)
        gradients = tf.math.unsorted_segment_sum(tf.gather(errors, owners) * values, which, tf.size(touched))
        parts = [tf.gather(gradients, place) for place in places] or [gradients]
        return loss, [tf.reduce_sum(errors, keepdims=True), *parts]

    def push(self, gradients: list[Tensor], pulled: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        tf, store = self._tf, self._store
        done = store.push(1, gradients[0], numbers)
        for piece, asked, part in zip(store.pieces[0], pulled[1:], gradients[1:], strict=False):
            with tf.device(server(piece.server)):
                done.append(scatter(tf, piece.variable, asked, numbers[0] * part))
        return done

    def make_room(self) -> None:
        """Room on the servers for the gradients of this worker: so many as a batch touches, never all features."""
        tf = self._tf
        for piece in self._pieces:
            with tf.device(server(piece.server)):
                features = tf.Variable(tf.zeros([0], tf.int32), shape=[None])
                self._kept.append((features, tf.Variable(tf.zeros([0]), shape=[None])))

    def keep(self, gradients: list[Tensor], pulled: list[Tensor]) -> list[Tensor]:
        """Leave the gradients on the servers."""
        done = []
        asked = [self._tf.zeros([1], self._tf.int32), *pulled[1 : len(self._pieces)]]
        for piece, (features, room), which, part in zip(self._pieces, self._kept, asked, gradients, strict=True):
            with self._tf.device(server(piece.server)):
                done += [features.assign(which, read_value=False), room.assign(part, read_value=False)]
        return done

    @staticmethod
    def apply(crew: list[SparseGradients], shares: Tensor, numbers: Tensor) -> list[Tensor]:
        """One step by the gradients of all, each with its share. Built for the servers; nothing leaves them."""
        done = []
        for place, piece in enumerate(crew[0]._pieces):
            with crew[0]._tf.device(server(piece.server)):
                for number, each in enumerate(crew):
                    done.append(each._move(place, piece.variable, numbers[0] * shares[number]))
        return done

    def _move(self, place: int, variable: Tensor, rate: Tensor) -> Tensor:
        """Apply what this worker has kept; nothing where its share is nothing, for it may be writing just now."""
        tf, (features, gradients) = self._tf, self._kept[place]

        def move() -> Tensor:
            with tf.control_dependencies([scatter(tf, variable, features.read_value(), rate * gradients.read_value())]):
                return tf.constant(True)

        return tf.cond(rate > 0, move, lambda: tf.constant(False))


def scatter(tf: Any, variable: Tensor, features: Tensor, moves: Tensor) -> Tensor:
    """Move the weights of some features."""
    return tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=features, updates=moves)


CHUNK = 16 * 2**20  # bytes that are read at a time, beside the room for all


def take(tf: Any, held: Tensor, rows: Tensor) -> Tensor:
    """Some rows out of what `load` put there; pictures that lie as bytes become numbers."""
    taken = tf.gather(held, rows)
    return tf.cast(taken, tf.float32) / LEVELS if taken.dtype == tf.uint8 else taken


def load(tf: Any, source: Any, device: str) -> Tensor:
    """A variable on the device with the content of an array in a file, an `InFile`.

    The worker there opens the file and decodes it.
    """
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
