"""All weights of a network on its parameter servers, one vector on each: to pull and to push is one tensor per server.

That is for workers that need all weights at every step; every tensor less is one call less between two machines.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.tensorflow.network import MEMORY, update
from trainoff.engines.tf_cluster.store import Span, place, server
from trainoff.models import Weights

Tensor = Any


class Packed:
    """The vectors, and what the optimiser remembers of each."""

    def __init__(self, tf: Any, job: Job, servers: int) -> None:
        self._tf, self._momentum = tf, job.params["momentum"]
        self._shapes = [part.shape for part in job.weights]
        placed = place(self._shapes, [[(0, shape[-1])] for shape in self._shapes], servers)
        # What lies in each vector, one after the other.
        self._pieces: list[list[tuple[int, Span]]] = [[] for _ in range(servers)]
        for weight, pieces in enumerate(placed):
            for span, number in pieces:
                self._pieces[number].append((weight, span))
        self._pieces = [pieces for pieces in self._pieces if pieces]  # the last servers may have nothing to hold
        self._initial = self._pack(job.weights)
        self.vectors, self._memory = [], []
        for number, vector in enumerate(self._initial):
            with tf.device(server(number)):
                self.vectors.append(tf.Variable(vector))
                copies = MEMORY[job.params["optimizer"]]
                self._memory.append([tf.Variable(tf.zeros_like(vector)) for _ in range(copies)])

    def _pack(self, weights: Weights) -> list[NDArray[np.float32]]:
        return [
            np.concatenate([weights[weight][..., slice(*span)].ravel() for weight, span in pieces])
            for pieces in self._pieces
        ]

    def _shape(self, weight: int, span: Span) -> tuple[int, ...]:
        return (*self._shapes[weight][:-1], span[1] - span[0])

    def pull(self) -> list[Tensor]:
        """All weights, on the device that the graph is being built for."""
        return self._unpack([self._tf.identity(vector.read_value()) for vector in self.vectors])

    def _unpack(self, vectors: list[Tensor]) -> list[Tensor]:
        tf = self._tf
        parts: list[list[Tensor]] = [[] for _ in self._shapes]
        for vector, pieces in zip(vectors, self._pieces, strict=True):
            shapes = [self._shape(*piece) for piece in pieces]
            for (weight, _), shape, part in zip(pieces, shapes, tf.split(vector, [*map(prod, shapes)]), strict=True):
                parts[weight].append(tf.reshape(part, shape))
        return [each[0] if len(each) == 1 else tf.concat(each, -1) for each in parts]

    def pack(self, slopes: list[Tensor]) -> list[Tensor]:
        """Slopes as one vector for every server."""
        tf = self._tf
        return [
            tf.concat([tf.reshape(slopes[weight][..., slice(*span)], [-1]) for weight, span in pieces], 0)
            for pieces in self._pieces
        ]

    def move(self, number: int, slope: Tensor, numbers: Tensor) -> Tensor:
        """Let one server move its vector against the slope; returns the operation."""
        with self._tf.device(server(number)):
            return update(self._tf, self.vectors[number], self._memory[number], slope, numbers, self._momentum)

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [part for vector, memory in zip(self.vectors, self._memory, strict=True) for part in (vector, *memory)]

    @property
    def initial(self) -> list[NDArray[np.float32]]:
        """What all of that begins with."""
        pairs = zip(self._initial, self._memory, strict=True)
        return [part for vector, memory in pairs for part in (vector, *(np.zeros_like(vector) for _ in memory))]

    def weights(self) -> Weights:
        """The weights as they are now."""
        found: list[list[NDArray[np.float32]]] = [[] for _ in self._shapes]
        for vector, pieces in zip(self.vectors, self._pieces, strict=True):
            shapes, whole = [self._shape(*piece) for piece in pieces], vector.numpy()
            edges = pairwise(accumulate(map(prod, shapes), initial=0))
            for (weight, _), shape, edge in zip(pieces, shapes, edges, strict=True):
                found[weight].append(whole[slice(*edge)].reshape(shape))
        return [np.concatenate(parts, -1) for parts in found]
