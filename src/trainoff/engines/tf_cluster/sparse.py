"""What a worker computes of logistic regression on sparse rows: only the weights that its rows touch travel."""

from __future__ import annotations

from typing import Any

from trainoff.engines.contract import Job
from trainoff.engines.tf_cluster.rows import load
from trainoff.engines.tf_cluster.store import Store, server, worker

Tensor = Any


class Sparse:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: Store, number: int) -> None:
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

    def slopes(self, pulled: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss, and its slopes: that of the bias, and those of the touched features, server by server."""
        tf, servers = self._tf, len(self._store.pieces[0])
        touched, which, values, owners, y = batch
        bias, weights, places = pulled[0], pulled[1 + servers], pulled[2 + servers :]
        z = tf.math.unsorted_segment_sum(tf.gather(weights, which) * values, owners, tf.size(y)) + bias
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        errors = (tf.sigmoid(z) - y) / tf.cast(tf.size(y), tf.float32)
        slopes = tf.math.unsorted_segment_sum(tf.gather(errors, owners) * values, which, tf.size(touched))
        parts = [tf.gather(slopes, place) for place in places] or [slopes]
        return loss, [tf.reduce_sum(errors, keepdims=True), *parts]

    def push(self, slopes: list[Tensor], pulled: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        tf, store = self._tf, self._store
        done = store.push(1, slopes[0], numbers)
        for piece, asked, part in zip(store.pieces[0], pulled[1:], slopes[1:], strict=False):
            with tf.device(server(piece.server)):
                done.append(scatter(tf, piece.variable, asked, numbers[0] * part))
        return done

    def make_room(self) -> None:
        """Room on the servers for the slopes of this worker: so many as a batch touches, never all features."""
        tf = self._tf
        for piece in self._pieces:
            with tf.device(server(piece.server)):
                features = tf.Variable(tf.zeros([0], tf.int32), shape=[None])
                self._kept.append((features, tf.Variable(tf.zeros([0]), shape=[None])))

    def keep(self, slopes: list[Tensor], pulled: list[Tensor]) -> list[Tensor]:
        """Leave the slopes on the servers."""
        done = []
        asked = [self._tf.zeros([1], self._tf.int32), *pulled[1 : len(self._pieces)]]
        for piece, (features, room), which, part in zip(self._pieces, self._kept, asked, slopes, strict=True):
            with self._tf.device(server(piece.server)):
                done += [features.assign(which, read_value=False), room.assign(part, read_value=False)]
        return done

    @staticmethod
    def apply(crew: list[Sparse], shares: Tensor, numbers: Tensor) -> list[Tensor]:
        """One step by the slopes of all, each with its share. Built for the servers; nothing leaves them."""
        done = []
        for place, piece in enumerate(crew[0]._pieces):
            with crew[0]._tf.device(server(piece.server)):
                for number, each in enumerate(crew):
                    done.append(each._move(place, piece.variable, numbers[0] * shares[number]))
        return done

    def _move(self, place: int, variable: Tensor, rate: Tensor) -> Tensor:
        """Apply what this worker has kept; nothing where its share is nothing, for it may be writing just now."""
        tf, (features, slopes) = self._tf, self._kept[place]

        def move() -> Tensor:
            with tf.control_dependencies([scatter(tf, variable, features.read_value(), rate * slopes.read_value())]):
                return tf.constant(True)

        return tf.cond(rate > 0, move, lambda: tf.constant(False))


def scatter(tf: Any, variable: Tensor, features: Tensor, moves: Tensor) -> Tensor:
    """Move the weights of some features."""
    return tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=features, updates=moves)
