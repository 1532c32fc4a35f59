"""What a worker computes of a network: it pulls all weights, takes its rows, and finds the slopes."""

from __future__ import annotations

from typing import Any

from trainoff.engines.contract import Job
from trainoff.engines.tensorflow.network import differentiate, update
from trainoff.engines.tf_cluster.rows import load
from trainoff.engines.tf_cluster.store import Store, server, worker

Tensor = Any


class Dense:
    """The part of the graph that belongs to one worker."""

    def __init__(self, tf: Any, job: Job, store: Store, number: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._x, self._y = (load(tf, part, worker(number)) for part in (job.data.x_train, job.data.y_train))
        self._kept: list[list[Tensor]] = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """The rows of a batch, out of the worker's memory."""
        return [self._tf.gather(self._x, rows), self._tf.gather(self._y, rows)]

    def pull(self, batch: list[Tensor]) -> list[Tensor]:
        """The weights, from the servers."""
        return [self._store.pull(weight) for weight in range(len(self._store.pieces))]

    def slopes(self, weights: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of the batch, and its gradient."""
        return differentiate(self._tf, self._model, weights, *batch)

    def push(self, slopes: list[Tensor], weights: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Let the servers make the step."""
        return [step for weight, slope in enumerate(slopes) for step in self._store.push(weight, slope, numbers)]

    def make_room(self) -> None:
        """Room on the servers for the slopes of this worker, where steps wait for those of the others."""
        for pieces in self._store.pieces:
            self._kept.append([])
            for piece in pieces:
                with self._tf.device(server(piece.server)):
                    self._kept[-1].append(self._tf.Variable(self._tf.zeros_like(piece.variable)))

    def keep(self, slopes: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Leave the slopes on the servers."""
        done = []
        for pieces, kept, slope in zip(self._store.pieces, self._kept, slopes, strict=True):
            for piece, room, part in zip(pieces, kept, self._store.cut(pieces, slope), strict=True):
                with self._tf.device(server(piece.server)):
                    done.append(room.assign(part, read_value=False))
        return done

    @staticmethod
    def apply(crew: list[Dense], shares: Tensor, numbers: Tensor) -> list[Tensor]:
        """One step by the slopes of all, each with its share. Built for the servers; nothing leaves them."""
        first = crew[0]
        tf, store, done = first._tf, first._store, []
        for weight, pieces in enumerate(store.pieces):
            for place, piece in enumerate(pieces):
                with tf.device(server(piece.server)):
                    parts = [shares[number] * each._kept[weight][place] for number, each in enumerate(crew)]
                    step = update(tf, piece.variable, piece.memory, tf.add_n(parts), numbers, store.momentum)
                    done.append(step)
        return done
