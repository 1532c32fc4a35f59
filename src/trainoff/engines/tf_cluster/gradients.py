"""What a worker computes of a network: it pulls all weights, takes its rows, and finds the slopes."""

from __future__ import annotations

from typing import Any

from trainoff.engines.contract import Job
from trainoff.engines.tensorflow.network import differentiate
from trainoff.engines.tf_cluster.packed import Packed
from trainoff.engines.tf_cluster.rows import load, take
from trainoff.engines.tf_cluster.store import server, worker

Tensor = Any


class Dense:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: Packed, number: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._x, self._y = (load(tf, part, worker(number)) for part in (job.data.x_train, job.data.y_train))
        self._kept: list[Tensor] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """The rows of a batch, out of the worker's memory."""
        return [take(self._tf, self._x, rows), self._tf.gather(self._y, rows)]

    def pull(self, batch: list[Tensor]) -> list[Tensor]:
        """The weights, from the servers."""
        return self._store.pull()

    def slopes(self, weights: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of the batch, and its gradient, server by server."""
        loss, gradient = differentiate(self._tf, self._model, weights, *batch)
        return loss, self._store.pack(gradient)

    def push(self, slopes: list[Tensor], weights: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        return [self._store.move(number, slope, numbers) for number, slope in enumerate(slopes)]

    def make_room(self) -> None:
        """Room on the servers for the slopes of this worker, where steps wait for those of the others."""
        for number, vector in enumerate(self._store.vectors):
            with self._tf.device(server(number)):
                self._kept.append(self._tf.Variable(self._tf.zeros_like(vector)))

    def keep(self, slopes: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Leave the slopes on the servers."""
        done = []
        for number, (room, slope) in enumerate(zip(self._kept, slopes, strict=True)):
            with self._tf.device(server(number)):
                done.append(room.assign(slope, read_value=False))
        return done

    @staticmethod
    def apply(crew: list[Dense], shares: Tensor, numbers: Tensor) -> list[Tensor]:
        """One step by the slopes of all, each with its share. Built for the servers; nothing leaves them."""
        tf, store, done = crew[0]._tf, crew[0]._store, []
        for place in range(len(store.vectors)):
            with tf.device(server(place)):
                # Who was left out may be writing just now; whatever it is, nothing of it counts.
                parts = [tf.math.multiply_no_nan(each._kept[place], shares[at]) for at, each in enumerate(crew)]
                mean = tf.add_n(parts)
            done.append(store.move(place, mean, numbers))
        return done
