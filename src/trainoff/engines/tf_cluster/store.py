"""The variables of a training on its parameter servers, spread so that every server has about as much.

Each weight is cut along its last axis into pieces, one per server; the small ones stay whole. A worker pulls what it
needs and pushes what is to change; TensorFlow moves the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.tensorflow.network import MEMORY, update
from trainoff.models import Weights

WHOLE = 1024  # numbers; a smaller variable is not worth cutting

Tensor = Any
Span = tuple[int, int]  # from and to, along the last axis


def server(number: int) -> str:
    """TensorFlow's name of a parameter server."""
    return f"/job:ps/replica:0/task:{number}/device:CPU:0"


def worker(number: int) -> str:
    """TensorFlow's name of a worker."""
    return f"/job:worker/replica:0/task:{number}/device:CPU:0"


@dataclass
class Piece:
    """A part of one weight on one server, and what the optimiser remembers of it there."""

    span: Span
    server: int
    variable: Tensor
    memory: list[Tensor] = field(default_factory=list)


class Store:
    """All pieces. `parts` says into which spans the workers divide each weight; one whole span by default."""

    def __init__(self, tf: Any, job: Job, servers: int, parts: Sequence[Sequence[Span]] | None = None) -> None:
        self._tf, self.momentum = tf, job.params["momentum"]
        copies = MEMORY[job.params["optimizer"]]
        shapes = [part.shape for part in job.weights]
        spans = parts or [[(0, shape[-1])] for shape in shapes]
        self.pieces: list[list[Piece]] = []
        self._initial: list[NDArray[np.float32]] = []
        for initial, placed in zip(job.weights, place(shapes, spans, servers), strict=True):
            self.pieces.append([self._make(initial, span, number, copies) for span, number in placed])

    def _make(self, initial: NDArray[np.float32], span: Span, number: int, copies: int) -> Piece:
        tf = self._tf
        part = np.ascontiguousarray(initial[..., slice(*span)])
        self._initial += [part, *(np.zeros_like(part) for _ in range(copies))]
        with tf.device(server(number)):
            variable = tf.Variable(part)
            return Piece(span, number, variable, [tf.Variable(tf.zeros_like(variable)) for _ in range(copies)])

    def pull(self, weight: int, span: Span | None = None) -> Tensor:
        """One weight, or a span of it, as a tensor on the device that the graph is being built for."""
        pieces = self.within(weight, span)
        parts = [self._tf.identity(piece.variable.read_value()) for piece in pieces]
        return parts[0] if len(parts) == 1 else self._tf.concat(parts, -1)

    def push(self, weight: int, slope: Tensor, numbers: Tensor, span: Span | None = None) -> list[Tensor]:
        """Let the servers move one weight, or a span of it, against its slope; returns the operations."""
        pieces, done = self.within(weight, span), []
        for piece, part in zip(pieces, self.cut(pieces, slope), strict=True):
            with self._tf.device(server(piece.server)):
                done.append(update(self._tf, piece.variable, piece.memory, part, numbers, self.momentum))
        return done

    def within(self, weight: int, span: Span | None) -> list[Piece]:
        """The pieces that a span is made of."""
        first, last = span or (0, self.pieces[weight][-1].span[1])
        return [piece for piece in self.pieces[weight] if first <= piece.span[0] and piece.span[1] <= last]

    def cut(self, pieces: Sequence[Piece], whole: Tensor) -> list[Tensor]:
        """A tensor in the parts that the pieces want."""
        if len(pieces) == 1:
            return [whole]
        parts: list[Tensor] = self._tf.split(whole, [piece.span[1] - piece.span[0] for piece in pieces], -1)
        return parts

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [part for pieces in self.pieces for piece in pieces for part in (piece.variable, *piece.memory)]

    @property
    def initial(self) -> list[NDArray[np.float32]]:
        """What all of that begins with."""
        return self._initial

    def weights(self) -> Weights:
        """The weights as they are now."""
        return [np.concatenate([piece.variable.numpy() for piece in pieces], -1) for pieces in self.pieces]


def place(
    shapes: Sequence[tuple[int, ...]], parts: Sequence[Sequence[Span]], servers: int
) -> list[list[tuple[Span, int]]]:
    """For every weight its pieces and the server of each; small ones go to the server that has least so far."""
    load = [0] * servers
    placed: list[list[tuple[Span, int]]] = []
    for shape, spans in zip(shapes, parts, strict=True):
        depth = prod(shape[:-1])
        pieces = []
        for first, last in spans:
            count = servers if (last - first) * depth >= WHOLE and last - first >= servers else 1
            edges = [first + (last - first) * number // count for number in range(count + 1)]
            for number, span in enumerate(pairwise(edges)):
                chosen = number if count > 1 else min(range(servers), key=load.__getitem__)
                load[chosen] += (span[1] - span[0]) * depth
                pieces.append((span, chosen))
        placed.append(pieces)
    return placed
