"""The mode model-parallel: the layers of the network are on different workers, and each row passes through all.

With more workers than layers, the outputs of the costliest layers are divided among several workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from trainoff.engines.shared.control_channel import Report
from trainoff.engines.shared.recovery import Checkpoint
from trainoff.engines.tensorflow.network import apply
from trainoff.engines.tf_cluster.ps_context import (
    COORDINATOR,
    ParameterStore,
    PsContext,
    Span,
    WorkerSeconds,
    load,
    take,
    time_after,
    worker_device,
)
from trainoff.models import Layer

Tensor = Any


@dataclass(frozen=True)
class PipelinePart:
    """Some outputs of a layer, and the worker that computes them."""

    worker: int
    span: Span


@dataclass(frozen=True)
class PipelineStage:
    """A layer with weights, the layers without any that follow it, and which workers compute them."""

    layer: Any
    behind: tuple[Layer, ...]  # those without weights that follow it
    parts: tuple[PipelinePart, ...]


def plan_stages(layers: Sequence[Layer], workers: int) -> list[PipelineStage]:
    """Assign the layers to workers so that the one with the most work has as little as possible."""
    starts = [at for at, layer in enumerate(layers) if layer.parameters]
    weighted: list[Any] = [layers[at] for at in starts]
    behind = [tuple(layers[first + 1 : last]) for first, last in pairwise([*starts, len(layers)])]
    cost = [layer.products for layer in weighted]
    if workers <= len(weighted):
        assigned = _whole_layers(cost, workers)
    else:
        assigned = _divided_layers(cost, [layer.outputs for layer in weighted], workers)
    stages = []
    for layer, following, indices in zip(weighted, behind, assigned, strict=True):
        edges = [layer.outputs * at // len(indices) for at in range(len(indices) + 1)]
        parts = (PipelinePart(index, span) for index, span in zip(indices, pairwise(edges), strict=True))
        stages.append(PipelineStage(layer, following, tuple(parts)))
    return stages


def _whole_layers(cost: Sequence[int], workers: int) -> list[list[int]]:
    """Return for each layer its one worker; a worker's layers are neighbours."""

    def groups(cuts: tuple[int, ...]) -> list[Sequence[int]]:
        return [cost[first:last] for first, last in pairwise((0, *cuts, len(cost)))]

    best = min(combinations(range(1, len(cost)), workers - 1), key=lambda cuts: max(map(sum, groups(cuts))))
    return [[worker] for worker, group in enumerate(groups(best)) for _ in group]


def _divided_layers(cost: Sequence[int], outputs: Sequence[int], workers: int) -> list[list[int]]:
    """Return for each layer its workers: the costliest get more, up to one for each output."""
    counts = [1] * len(cost)
    for _ in range(workers - len(cost)):
        divisible = [at for at in range(len(cost)) if counts[at] < outputs[at]]
        counts[max(divisible, key=lambda at: cost[at] / counts[at])] += 1
    indices = iter(range(workers))
    return [[next(indices) for _ in range(count)] for count in counts]


def shard_spans(stages: Sequence[PipelineStage]) -> list[list[Span]]:
    """Return the spans into which the weights and biases are divided."""
    return [[part.span for part in stage.parts] for stage in stages for _ in stage.layer.parameters]


class Pipeline:
    """One graph over all workers and servers, with every operation placed explicitly."""

    def __init__(self, context: PsContext, store: ParameterStore, stages: Sequence[PipelineStage]) -> None:
        self._context, self._store, self._stages = context, store, stages
        tf, data = context.tf, context.job.data
        self._tf = tf
        self._x = {part.worker: load(tf, data.x_train, worker_device(part.worker)) for part in stages[0].parts}
        self._last = stages[-1].parts[0].worker
        self._y = load(tf, data.y_train, worker_device(self._last))
        self._workers = context.job.workers
        self._computing: list[list[Tensor]] = []  # the seconds of each worker's parts
        self._penalties: list[Tensor] = []  # the L2 terms of the loss
        signature = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([2])]
        # Not tf.function, which would read all clocks one after the other, so that one part would wait for the next.
        self._function = tf.compat.v1.wrap_function(self._step, signature)
        self._seconds = WorkerSeconds(self._workers)

    def _step(self, rows: Tensor, scalars: Tensor) -> Tensor:
        tf = self._tf
        self._computing, self._penalties = [[] for _ in range(self._workers)], []
        forward: list[list[tuple[Any, ...]]] = []
        outputs: list[Tensor] = []
        for stage in self._stages:
            forward.append([self._forward(stage, part, rows, outputs) for part in stage.parts])
            outputs = [output for *_, output in forward[-1]]
        loss, gradient = self._loss(rows, outputs)
        done: list[Tensor] = []
        for stage, results in zip(reversed(self._stages), reversed(forward), strict=True):
            parts = zip(stage.parts, results, strict=True)
            backward = [self._backward(stage, part, result, gradient, scalars) for part, result in parts]
            done += [step for _, steps in backward for step in steps]
            gradient = [each for by_inputs, _ in backward for each in by_inputs]
        loss += tf.add_n([tf.zeros([]), *self._penalties])
        with tf.device(COORDINATOR), tf.control_dependencies(done):
            seconds = [tf.add_n([tf.zeros([], tf.float64), *map(tf.identity, each)]) for each in self._computing]
            return tf.stack([tf.cast(loss, tf.float64), *seconds])

    def _forward(self, stage: PipelineStage, part: PipelinePart, rows: Tensor, before: list[Tensor]) -> tuple[Any, ...]:
        """Return the tape, the inputs, the weights and the outputs of a part."""
        tf, store, l2 = self._tf, self._store, self._context.job.model.l2
        with tf.device(worker_device(part.worker)):
            inputs = tf.concat(before, -1) if before else take(tf, self._x[part.worker], rows)
            weights = [store.pull(parameter.name, part.span) for parameter in stage.layer.parameters]
            start = time_after(tf, [inputs, *weights])
            with tf.control_dependencies([start]):
                inputs = tf.identity(inputs)
            with tf.GradientTape() as tape:
                tape.watch([inputs, *weights])
                output = apply(tf, stage.layer, inputs, *weights)
                for layer in stage.behind:
                    output = apply(tf, layer, output)
            self._computing[part.worker].append(time_after(tf, [output]) - start)
            if l2:
                named = zip(stage.layer.parameters, weights, strict=True)
                self._penalties += [l2 * tf.nn.l2_loss(weight) for parameter, weight in named if parameter.regularised]
            return tape, inputs, weights, output

    def _loss(self, rows: Tensor, scores: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the mean cross-entropy, and its gradient by the scores."""
        tf = self._tf
        with tf.device(worker_device(self._last)), tf.GradientTape() as tape:
            z = tf.concat(scores, -1)
            tape.watch(z)
            y = tf.gather(self._y, rows)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, z))
            return loss, [tape.gradient(loss, z)]

    def _backward(
        self,
        stage: PipelineStage,
        part: PipelinePart,
        forward: tuple[Any, ...],
        gradient: list[Tensor],
        scalars: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Make the step of a part; returns the gradient by its inputs, and the operations."""
        tf, store, l2 = self._tf, self._store, self._context.job.model.l2
        tape, inputs, weights, output = forward
        with tf.device(worker_device(part.worker)):
            by_outputs = [each[..., slice(*part.span)] for each in gradient]
            start = time_after(tf, by_outputs)
            with tf.control_dependencies([start]):
                total = tf.reshape(tf.add_n(by_outputs), tf.shape(output))
            sources = weights if stage is self._stages[0] else [inputs, *weights]  # none by the rows is needed
            found = tape.gradient(output, sources, output_gradients=total)
            by_inputs, gradients = found[: -len(weights)], found[-len(weights) :]
            parameters = stage.layer.parameters
            if l2:
                named = zip(parameters, gradients, weights, strict=True)
                gradients = [each + l2 * weight if parameter.regularised else each for parameter, each, weight in named]
            self._computing[part.worker].append(time_after(tf, [*by_inputs, *gradients]) - start)
            done = [
                step
                for parameter, each in zip(parameters, gradients, strict=True)
                for step in store.push(parameter.name, each, scalars, part.span)
            ]
            return by_inputs, done

    def warm_up(self) -> None:
        """Make a step without effect, for TensorFlow to compile."""
        self._run(1, (0.0, 0.0))

    def _run(self, step: int, scalars: tuple[float, float]) -> list[float]:
        """Make a step; returns the loss, and the seconds that each worker computed."""
        rows = self._context.job.order.batch(step).astype("int32")
        result: list[float] = self._function(self._tf.constant(rows), self._tf.constant(scalars)).numpy().tolist()
        return result

    def train(self, resume: Checkpoint | None) -> Report:
        """Make all steps after the checkpoint."""
        context = self._context
        for step in range(context.first_step(resume), context.job.order.steps + 1):
            loss, *computing = self._run(step, context.scalars(step))
            for worker, seconds in enumerate(computing):
                self._seconds.add(worker, seconds, seconds)  # transfers cannot be distinguished from waiting
            context.step_done(step, loss)
        return self._seconds.report({})
