"""The mode sync: the gradients of all workers are averaged, then applied; the slowest may be left out."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import numpy as np

from trainoff.data.batch_order import share
from trainoff.engines.shared.control_channel import Report
from trainoff.engines.shared.recovery import Checkpoint
from trainoff.engines.tf_cluster.ps_context import HERE, PsContext, WorkerSeconds, row_numbers, work, worker

Tensor = Any


class Synchronous:
    """Every step, each worker leaves the gradients of its share on the servers; then these make the step."""

    def __init__(self, context: PsContext, learners: list[Any]) -> None:
        self._context, self._workers = context, len(learners)
        self._needed = self._workers - context.job.params["backup_workers"]
        for learner in learners:
            learner.make_room()
        self._functions = [self._compile(number, learner) for number, learner in enumerate(learners)]
        self._apply = self._compile_apply(learners)
        self._spent, self._dropped = WorkerSeconds(self._workers), 0
        self._errands: list[queue.SimpleQueue[tuple[int, Any]]] = [queue.SimpleQueue() for _ in learners]
        self._results: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._busy: set[int] = set()

    def _compile(self, number: int, learner: Any) -> Any:
        tf = self._context.tf

        def step(rows: Tensor) -> Tensor:
            with tf.device(worker(number)):
                done = work(tf, learner, rows)
                result = tf.stack([done.loss, done.computing])
            with tf.control_dependencies(learner.keep(done.gradients, done.pulled)), tf.device(HERE):
                return tf.identity(result)

        signature = [tf.TensorSpec([None], tf.int32)]
        return tf.function(step, input_signature=signature, autograph=False).get_concrete_function()

    def _compile_apply(self, learners: list[Any]) -> Any:
        tf = self._context.tf

        def apply(shares: Tensor, numbers: Tensor) -> Tensor:
            with tf.control_dependencies(type(learners[0]).apply(learners, shares, numbers)), tf.device(HERE):
                return tf.constant(0)

        signature = [tf.TensorSpec([self._workers]), tf.TensorSpec([2])]
        return tf.function(apply, input_signature=signature, autograph=False).get_concrete_function()

    def warm_up(self) -> None:
        """Have every worker make its part of a step that is forgotten."""
        tf = self._context.tf
        for number in range(self._workers):
            self._functions[number](tf.constant(row_numbers(self._context.job.order.batch(1)[:1])))
        self._apply(tf.zeros([self._workers]), tf.zeros([2])).numpy()

    def train(self, resume: Checkpoint | None) -> Report:
        """All steps after the checkpoint."""
        context, order = self._context, self._context.job.order
        first = len(resume.done) + 1 if resume else 1
        context.leader.pace.taken(order.samples_after(first - 1))
        for number in range(self._workers):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()
        for step in range(first, order.steps + 1):
            loss = self._step(step, order.batch(step))
            if context.leader.pace.wanted(step, order.samples_after(step)) or context.checkpoints.due(step):
                self._wait_for_the_late()
            context.checkpoints.step_done(context.leader, step, loss, context.store.weights, context.store.state)
        counts = {"gradients_dropped": float(self._dropped)} if self._needed < self._workers else {}
        return self._spent.report(counts)

    def _step(self, step: int, rows: Any) -> float:
        """One step of all; returns the mean loss before it."""
        shares = [share(rows, number, self._workers) for number in range(self._workers)]
        asked = [number for number in range(self._workers) if len(shares[number])]
        needed = min(self._needed, len(asked))
        waiting = set(asked)
        arrived: dict[int, float] = {}
        while len(arrived) < needed:
            for number in [number for number in waiting if number not in self._busy]:
                waiting.discard(number)
                self._busy.add(number)
                self._errands[number].put((step, shares[number]))
            number, of, result = self._hear()
            if of == step:
                arrived[number] = result
        counts = np.array([len(part) if at in arrived else 0 for at, part in enumerate(shares)])
        parts = (counts / counts.sum()).astype(np.float32)
        tf = self._context.tf
        self._apply(tf.constant(parts), tf.constant(self._context.numbers(step))).numpy()
        self._dropped += len(asked) - len(arrived)
        return float(sum(parts[number] * loss for number, loss in arrived.items()))

    def _hear(self) -> tuple[int, int, float]:
        """What the next worker to be done has found, and of which step."""
        number, step, result = self._results.get()
        self._busy.discard(number)
        if isinstance(result, Exception):
            raise result
        loss, computing, whole = result
        self._spent.book(number, computing, whole)
        return number, step, loss

    def _wait_for_the_late(self) -> None:
        """Nobody works while the clock stands."""
        while self._busy:
            self._hear()

    def _work(self, number: int) -> None:
        """Be the hand of one worker."""
        tf = self._context.tf
        while True:
            step, rows = self._errands[number].get()
            start = time.monotonic()
            try:
                loss, computing = self._functions[number](tf.constant(row_numbers(rows))).numpy().tolist()
                result: Any = loss, computing, time.monotonic() - start
            except Exception as error:  # the main thread raises it
                result = error
            self._results.put((number, step, result))
