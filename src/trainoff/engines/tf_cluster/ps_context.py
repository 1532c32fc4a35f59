"""What every mode of tf-ps works with: the job, the workers' time, and the parameters on their servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient, Report
from trainoff.engines.shared.recovery import CheckpointWriter
from trainoff.engines.tensorflow.network import MEMORY, step_numbers, update
from trainoff.models import Weights

HERE = "/job:chief/replica:0/task:0/device:CPU:0"  # the coordinator
FIRST_S = 60.0  # how long the first update of a worker may take
STUCK_S = 10.0  # without a sign of life a worker is given up after this time ...
STUCK_STEPS = 20  # ... or after so many of its slowest steps, if that is longer

Tensor = Any


@dataclass
class PsContext:
    """The job, its variables, the line to the driver, and where checkpoints go. Its rows are places in files."""

    tf: Any
    job: Job
    store: ParameterStore | PackedParameters
    leader: ControlClient
    checkpoints: CheckpointWriter

    def numbers(self, step: int) -> tuple[float, float]:
        """The rate and Adam's epsilon of a step."""
        return step_numbers(self.job.params["optimizer"], float(self.job.rates[step - 1]), step)


@dataclass
class WorkerSeconds:
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
    """The part of a graph in which one worker finds the gradients of its rows, and how long that takes it."""

    loss: Tensor
    pulled: list[Tensor]
    gradients: list[Tensor]
    computing: Tensor


def work(tf: Any, learner: Any, rows: Tensor, before: Sequence[Tensor] = ()) -> Worked:
    """Build it for the current device: take the rows, pull the weights after what must come before, compute."""
    batch = learner.take(rows)
    with tf.control_dependencies(list(before)):
        pulled = learner.pull(batch)
    here = after(tf, [*batch, *pulled])
    with tf.control_dependencies([here]):
        loss, gradients = learner.gradients(pulled, batch)
    return Worked(tf.cast(loss, tf.float64), pulled, gradients, after(tf, [loss, *gradients]) - here)


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


WHOLE = 1024  # numbers; a smaller variable is not worth cutting

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


class ParameterStore:
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

    def push(self, weight: int, gradient: Tensor, numbers: Tensor, span: Span | None = None) -> list[Tensor]:
        """Let the servers move one weight, or a span of it, against its gradient; returns the operations."""
        pieces, done = self.within(weight, span), []
        for piece, part in zip(pieces, self.cut(pieces, gradient), strict=True):
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


class PackedParameters:
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

    def pack(self, gradients: list[Tensor]) -> list[Tensor]:
        """Gradients as one vector for every server."""
        tf = self._tf
        return [
            tf.concat([tf.reshape(gradients[weight][..., slice(*span)], [-1]) for weight, span in pieces], 0)
            for pieces in self._pieces
        ]

    def move(self, number: int, gradient: Tensor, numbers: Tensor) -> Tensor:
        """Let one server move its vector against the gradient; returns the operation."""
        with self._tf.device(server(number)):
            return update(self._tf, self.vectors[number], self._memory[number], gradient, numbers, self._momentum)

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
