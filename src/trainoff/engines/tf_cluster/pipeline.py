"""The mode model-parallel: the layers of the network lie on different workers, and each row passes them all.

Where there are more workers than layers, the outputs of the costliest layers are divided among several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from trainoff.engines.shared.control_channel import Report
from trainoff.engines.shared.recovery import Checkpoint
from trainoff.engines.tensorflow.network import pooled, through
from trainoff.engines.tf_cluster.gradients import load, take
from trainoff.engines.tf_cluster.ps_context import (
    HERE,
    ParameterStore,
    PsContext,
    Span,
    WorkerSeconds,
    after,
    row_numbers,
    worker,
)
from trainoff.models import Layer, PoolLayer

Tensor = Any


@dataclass(frozen=True)
class PipelinePart:
    """Some outputs of a layer, and the worker that computes them."""

    worker: int
    span: Span


@dataclass(frozen=True)
class PipelineStage:
    """A layer with weights, whether its outputs are pooled, and who computes it."""

    layer: Any
    pool: bool
    parts: tuple[PipelinePart, ...]


def stages(layers: Sequence[Layer], workers: int) -> list[PipelineStage]:
    """Which worker has which layer, so that the one with most to do has as little as possible."""
    own = [layer for layer in layers if not isinstance(layer, PoolLayer)]
    pools = [isinstance(behind, PoolLayer) for layer, behind in pairwise([*layers, None]) if layer in own]
    cost = [layer.products for layer in own]
    if workers <= len(own):
        crews = _whole_layers(cost, workers)
    else:
        crews = _divided_layers(cost, [layer.outputs for layer in own], workers)
    return [
        PipelineStage(layer, pool, tuple(_parts(layer.outputs, crew)))
        for layer, pool, crew in zip(own, pools, crews, strict=True)
    ]


def _whole_layers(cost: Sequence[int], workers: int) -> list[list[int]]:
    """For each layer its one worker: neighbouring layers lie together."""

    def groups(cuts: tuple[int, ...]) -> list[Sequence[int]]:
        return [cost[first:last] for first, last in pairwise((0, *cuts, len(cost)))]

    best = min(combinations(range(1, len(cost)), workers - 1), key=lambda cuts: max(map(sum, groups(cuts))))
    return [[number] for number, group in enumerate(groups(best)) for _ in group]


def _divided_layers(cost: Sequence[int], outputs: Sequence[int], workers: int) -> list[list[int]]:
    """For each layer its workers: the costliest get more, up to one for each output."""
    counts = [1] * len(cost)
    for _ in range(workers - len(cost)):
        open_ones = [at for at in range(len(cost)) if counts[at] < outputs[at]]
        counts[max(open_ones, key=lambda at: cost[at] / counts[at])] += 1
    numbers = iter(range(workers))
    return [[next(numbers) for _ in range(count)] for count in counts]


def _parts(outputs: int, crew: Sequence[int]) -> list[PipelinePart]:
    edges = [outputs * at // len(crew) for at in range(len(crew) + 1)]
    return [PipelinePart(number, span) for number, span in zip(crew, pairwise(edges), strict=True)]


def spans(found: Sequence[PipelineStage]) -> list[list[Span]]:
    """Into which spans the weights and the biases are divided."""
    return [[part.span for part in stage.parts] for stage in found for _ in ("weights", "bias")]


class Pipeline:
    """One graph over all workers and servers; every operation of it is placed by hand."""

    def __init__(self, context: PsContext, store: ParameterStore, found: Sequence[PipelineStage]) -> None:
        self._context, self._store, self._stages = context, store, found
        data, self._tf = context.job.data, context.tf
        self._x = {part.worker: load(context.tf, data.x_train, worker(part.worker)) for part in found[0].parts}
        self._last = found[-1].parts[0].worker
        self._y = load(context.tf, data.y_train, worker(self._last))
        self._workers = context.job.workers
        self._busy: list[list[Tensor]] = [[] for _ in range(self._workers)]
        signature = [context.tf.TensorSpec([None], context.tf.int32), context.tf.TensorSpec([2])]
        # Not tf.function, which would read all clocks one after the other, and so let one part wait for the next.
        self._function = context.tf.compat.v1.wrap_function(self._step, signature)
        self._spent = WorkerSeconds(self._workers)

    def _step(self, rows: Tensor, numbers: Tensor) -> Tensor:
        tf = self._tf
        self._busy = [[] for _ in range(self._workers)]
        passed = []
        outputs: list[Tensor] = []
        for number, stage in enumerate(self._stages):
            passed.append([self._forward(number, stage, part, rows, outputs) for part in stage.parts])
            outputs = [output for *_, output in passed[-1]]
        loss, gradient = self._loss(rows, outputs)
        done: list[Tensor] = []
        for number in reversed(range(len(self._stages))):
            parts = zip(self._stages[number].parts, passed[number], strict=True)
            back = [self._backward(number, part, run, gradient, numbers) for part, run in parts]
            done += [step for _, steps in back for step in steps]
            gradient = [each for into, _ in back for each in into]
        loss += tf.add_n([tf.zeros([]), *self._penalties(passed)])
        with tf.device(HERE), tf.control_dependencies(done):
            busy = [tf.add_n([tf.zeros([], tf.float64), *map(tf.identity, each)]) for each in self._busy]
            return tf.stack([tf.cast(loss, tf.float64), *busy])

    def _forward(
        self, number: int, stage: PipelineStage, part: PipelinePart, rows: Tensor, before: list[Tensor]
    ) -> tuple[Any, ...]:
        """What a part puts out, with the tape to go back by."""
        tf, store = self._tf, self._store
        with tf.device(worker(part.worker)):
            came = tf.concat(before, -1) if before else take(tf, self._x[part.worker], rows)
            weights = [store.pull(2 * number + at, part.span) for at in (0, 1)]
            start = after(tf, [came, *weights])
            with tf.control_dependencies([start]):
                came = tf.identity(came)
            with tf.GradientTape() as tape:
                tape.watch([came, *weights])
                output = through(tf, stage.layer, came, *weights)
                output = pooled(tf, output) if stage.pool else output
            self._busy[part.worker].append(after(tf, [output]) - start)
            return tape, came, weights, output

    def _loss(self, rows: Tensor, scores: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean cross-entropy, and its gradient by the scores."""
        tf = self._tf
        with tf.device(worker(self._last)), tf.GradientTape() as tape:
            z = tf.concat(scores, -1)
            tape.watch(z)
            y = tf.gather(self._y, rows)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, z))
            return loss, [tape.gradient(loss, z)]

    def _backward(
        self, number: int, part: PipelinePart, run: tuple[Any, ...], gradient: list[Tensor], numbers: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Make the step of a part; returns the gradient by what came in, and the operations."""
        tf, store, l2 = self._tf, self._store, self._context.job.model.l2
        tape, came, weights, output = run
        with tf.device(worker(part.worker)):
            mine = [each[..., slice(*part.span)] for each in gradient]
            start = after(tf, mine)
            with tf.control_dependencies([start]):
                total = tf.reshape(tf.add_n(mine), tf.shape(output))
            sources = [came, *weights] if number else weights  # nobody asks for the gradient by the rows themselves
            *into, matrix, bias = tape.gradient(output, sources, output_gradients=total)
            gradients = [matrix, bias]
            if l2:
                gradients[0] += l2 * weights[0]
            self._busy[part.worker].append(after(tf, [*into, *gradients]) - start)
            done = [
                step
                for at, each in enumerate(gradients)
                for step in store.push(2 * number + at, each, numbers, part.span)
            ]
            return into, done

    def _penalties(self, passed: list[list[tuple[Any, ...]]]) -> list[Tensor]:
        """The L2 term of the loss, worker by worker."""
        tf, l2 = self._tf, self._context.job.model.l2
        found = []
        for stage, runs in zip(self._stages, passed, strict=True) if l2 else ():
            for part, (_, _, weights, _) in zip(stage.parts, runs, strict=True):
                with tf.device(worker(part.worker)):
                    found.append(l2 * tf.nn.l2_loss(weights[0]))
        return found

    def warm_up(self) -> None:
        """Make a step that is forgotten."""
        self._run(1, (0.0, 0.0))

    def _run(self, step: int, numbers: tuple[float, float]) -> list[float]:
        rows = row_numbers(self._context.job.order.batch(step))
        result: list[float] = self._function(self._tf.constant(rows), self._tf.constant(numbers)).numpy().tolist()
        return result

    def train(self, resume: Checkpoint | None) -> Report:
        """All steps after the checkpoint."""
        context, order = self._context, self._context.job.order
        first = len(resume.done) + 1 if resume else 1
        context.leader.snapshot_schedule.taken(order.samples_after(first - 1))
        for step in range(first, order.steps + 1):
            loss, *busy = self._run(step, context.numbers(step))
            for number, seconds in enumerate(busy):
                self._spent.book(number, seconds, seconds)  # transfers cannot be told from waiting
            context.checkpoints.step_done(context.leader, step, loss, context.store.weights, context.store.state)
        return self._spent.report({})
