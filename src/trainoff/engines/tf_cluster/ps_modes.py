"""The modes async and sync of tf-ps.

In async every worker pulls, computes and pushes as fast as it can. In sync the gradients of all workers are averaged
and then applied; the slowest workers may be left out.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainoff.data import Order
from trainoff.data.batch_order import share
from trainoff.engines.shared.control_channel import REPORT_S, Report
from trainoff.engines.shared.recovery import Checkpoint
from trainoff.engines.tf_cluster.ps_context import (
    COORDINATOR,
    PsContext,
    WorkerSeconds,
    assign,
    build_gradient_step,
    server_device,
    worker_device,
)
from trainoff.errors import TrainoffError

FIRST_S = 60.0  # how long the first update of a worker may take
STUCK_S = 10.0  # without an update for this time a worker is given up ...
STUCK_STEPS = 20  # ... or for the time of this many of its slowest updates, if that is longer

Tensor = Any


class SharedRows:
    """The rows where every worker holds all of them: an update is a list of their indices."""

    shared = True  # so that another worker can repeat an update that was lost

    def __init__(self, order: Order) -> None:
        self._order = order

    def first(self) -> Any:
        """Return the input of the update that warms a worker up."""
        return self.next(0, 1)

    def ready(self, worker: int, over: Callable[[], bool]) -> bool:
        """Wait until there are rows for a worker's next update; False if the training ends before."""
        return not over()

    def next(self, worker: int, batch: int) -> Any:
        """Return the input of a worker's next update."""
        return self._order.batch(batch).astype(np.int32)


class AsyncTraining:
    """The mode async: a thread per worker has it make one update after the other."""

    def __init__(self, context: PsContext, workers: list[Any], rows: SharedRows | None = None) -> None:
        self._context, self._workers = context, len(workers)
        self._rows = rows or SharedRows(context.job.order)
        with context.tf.device(server_device(0)):
            self._version = context.tf.Variable(0, dtype=context.tf.int64)  # how many updates have been applied
        self._functions = [self._compile(index, worker) for index, worker in enumerate(workers)]
        self._seconds, self._staleness = WorkerSeconds(self._workers), Counter[int]()
        self._feeding_s = [0.0] * self._workers  # that each waited for rows
        self._loss: float | None = None
        self._slowest = 0.0
        self._errors: list[Exception] = []
        self._reported: set[int] = set()  # the lost workers that the driver knows of

    def _compile(self, index: int, worker: Any) -> Any:
        """Compile one update by one worker, as a graph that spans the worker and the servers."""
        tf, aware = self._context.tf, self._context.job.params["staleness_aware"]

        # Every transfer between two machines costs a call; so the servers send their figures straight to the
        # coordinator, and nothing waits that need not.
        def step(rows: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
            with tf.device(server_device(0)):
                seen = self._version.read_value()  # before the weights, so that none is younger than it seems
            with tf.device(worker_device(index)):
                figures, pulled, gradients = build_gradient_step(tf, worker, rows, [seen])
                if aware:
                    with tf.control_dependencies(gradients):
                        behind = tf.cast(self._version.read_value() - seen, tf.float32)
                    scalars = scalars * tf.stack([1 / (1 + behind), 1.0])
                pushed = worker.push(gradients, pulled, scalars)
                result = tf.stack([*figures, tf.cast(seen, tf.float64)])
            with tf.device(server_device(0)), tf.control_dependencies(pushed):
                version = self._version.assign_add(1)
            with tf.device(COORDINATOR):
                return tf.identity(result), tf.identity(version)

        signature = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([2])]
        return tf.function(step, input_signature=signature, autograph=False).get_concrete_function()

    def warm_up(self) -> None:
        """Have every worker make an update without effect, for TensorFlow to compile."""
        for index in range(self._workers):
            self._update(index, self._rows.first(), (0.0, 0.0))

    def _update(self, index: int, rows: Any, scalars: tuple[float, float]) -> tuple[float, float, int]:
        """Have a worker make one update; returns the loss, the seconds of computing, and the updates it missed."""
        tf = self._context.tf
        result, version = self._functions[index](tf.constant(rows), tf.constant(scalars))
        loss, computing, seen = result.numpy().tolist()
        return loss, computing, int(version) - int(seen) - 1

    def train(self, resume: Checkpoint | None) -> Report:
        """Make all updates that are not in the checkpoint."""
        context, order = self._context, self._context.job.order
        done = resume.done if resume else frozenset()
        assign(self._version, len(done))
        self._scheduler = scheduler = AsyncScheduler(
            order, self._workers, context.pause_due, context.job.params.get("max_staleness"), done
        )
        if scheduler.samples:
            context.control.snapshot_schedule.taken(scheduler.samples)
        self._threads = [
            threading.Thread(target=self._run_worker, args=(index,), daemon=True) for index in range(self._workers)
        ]
        for thread in self._threads:
            thread.start()
        while True:
            idle = scheduler.wait(REPORT_S)
            self._drop_lost_workers()
            if progress := scheduler.progress():
                updates, samples = progress
                if context.checkpoints.due(updates):
                    context.control.report_now()
                context.control.progress(updates, self._loss, context.weights, samples)
            if idle and scheduler.over:
                return self._report()
            if idle:
                if context.checkpoints.due(scheduler.updates):
                    context.checkpoints.save(context.state, scheduler.applied)
                scheduler.resume()

    def _run_worker(self, index: int) -> None:
        """Have one worker make updates until none is left. Run in its own thread."""
        scheduler = self._scheduler
        try:
            while self._wait_for_rows(index) and (turn := scheduler.next_batch(index)):
                batch, update = turn
                start = time.monotonic()
                rows, scalars = self._rows.next(index, batch), self._context.scalars(update)
                loss, computing, stale = self._update(index, rows, scalars)
                seconds = time.monotonic() - start
                if scheduler.finish(index):  # else it had been given up, and does not count
                    self._loss, self._slowest = loss, max(self._slowest, seconds)
                    self._seconds.add(index, computing, seconds)
                    self._staleness[stale] += 1
        except Exception as error:  # the main thread raises it, or goes on without this worker
            self._errors.append(error)
            scheduler.drop(index)

    def _wait_for_rows(self, index: int) -> bool:
        start = time.monotonic()
        try:
            return self._rows.ready(index, lambda: self._scheduler.over)
        finally:
            self._feeding_s[index] += time.monotonic() - start

    def _drop_lost_workers(self) -> None:
        """Give up workers that fail or are stuck; raise if the training cannot go on without them."""
        scheduler, errors = self._scheduler, self._context.tf.errors
        # An operation was impossible; any other of TensorFlow's errors means that a worker is gone.
        mistakes = (errors.InvalidArgumentError, errors.ResourceExhaustedError, errors.UnimplementedError)
        patience = max(STUCK_S, STUCK_STEPS * self._slowest) if self._slowest else FIRST_S
        for index, batch in list(scheduler.in_flight.items()):
            if time.monotonic() - batch.since > patience:
                scheduler.drop(index)
        for error in self._errors:
            required = len(scheduler.lost) == self._workers or not self._rows.shared
            if required or not isinstance(error, errors.OpError) or isinstance(error, mistakes):
                raise error
        if scheduler.lost and not self._rows.shared:
            raise TrainoffError(f"worker-{min(scheduler.lost)} is stuck, and no other worker has its rows")
        for index in scheduler.lost.keys() - self._reported:
            self._reported.add(index)
            batches = 1 if scheduler.lost[index] else 0  # silent for no time: it had none
            self._context.control.lost(f"worker-{index}", batches * self._context.job.order.batch_size)

    def _report(self) -> Report:
        scheduler, counts = self._scheduler, {}
        for index, thread in enumerate(self._threads):
            if index not in scheduler.lost:
                thread.join()  # it may still be counting its last update
        if scheduler.lost:
            detection = sum(scheduler.lost.values())
            counts = {"workers_lost": len(scheduler.lost), "detection_s": detection, "steps_redone": scheduler.redone}
        breakdowns = {"staleness": {str(stale): float(count) for stale, count in sorted(self._staleness.items())}}
        if not self._rows.shared:
            breakdowns["feeding_s"] = {f"worker-{index}": seconds for index, seconds in enumerate(self._feeding_s)}
        return self._seconds.report(counts, **breakdowns)


class BatchAssignment:
    """The batches that are left: a worker gets those of its own part of the order first, then the others'."""

    def __init__(self, steps: int, workers: int, done: Collection[int] = ()) -> None:
        self._left = [
            deque(step for step in range(index + 1, steps + 1, workers) if step not in done) for index in range(workers)
        ]

    def next(self, worker: int) -> int | None:
        """Return the next batch for a worker; None if none is left."""
        part = self._left[worker] or max(self._left, key=len)
        return part.popleft() if part else None

    def put_back(self, worker: int, batch: int) -> None:
        """Return a batch that was not applied."""
        self._left[worker].appendleft(batch)


@dataclass
class InFlightBatch:
    """A batch that a worker is computing: since when, and how many others may be applied before it."""

    batch: int
    since: float
    overtaken: int


class AsyncScheduler:
    """Gives every worker its next batch, or has it wait.

    `pause_after(updates, samples)` says after which updates all workers wait until `resume`. No gradient is applied
    after more than `max_staleness` others that its weights had not seen.
    """

    def __init__(
        self,
        order: Order,
        workers: int,
        pause_after: Callable[[int, int], bool],
        max_staleness: int | None = None,
        done: Collection[int] = (),
    ) -> None:
        self._order, self._pause_after, self._max_staleness = order, pause_after, max_staleness
        self._batches = BatchAssignment(order.steps, workers, done)
        self.applied = set(done)
        self.samples = sum(map(self._rows, done))
        self._started = len(self.applied)
        self.in_flight: dict[int, InFlightBatch] = {}
        self.lost: dict[int, float] = {}  # the workers that were given up, and how long they had been silent
        self.redone = 0
        self.paused = False
        self._changed = threading.Condition()

    @property
    def updates(self) -> int:
        return len(self.applied)

    @property
    def over(self) -> bool:
        return self.updates == self._order.steps

    def next_batch(self, worker: int) -> tuple[int, int] | None:
        """Wait for a worker's turn; returns its batch and the number of the update, or None if nothing is left."""
        with self._changed:
            while not self.over and worker not in self.lost:
                if self._may_start() and (batch := self._batches.next(worker)):
                    for other in self.in_flight.values():
                        other.overtaken += 1
                    self.in_flight[worker] = InFlightBatch(batch, time.monotonic(), len(self.in_flight))
                    self._started += 1
                    return batch, min(self._started, self._order.steps)
                self._changed.wait()
        return None

    def _may_start(self) -> bool:
        if self.paused or self._max_staleness is None:
            return not self.paused
        others = self.in_flight.values()
        return len(others) <= self._max_staleness and all(each.overtaken < self._max_staleness for each in others)

    def finish(self, worker: int) -> bool:
        """Count a worker's batch as applied; False if the worker was given up before."""
        with self._changed:
            done = self.in_flight.pop(worker, None)
            if done is None:
                return False
            self.applied.add(done.batch)
            self.samples += self._rows(done.batch)
            self.paused = self.paused or self._pause_after(self.updates, self.samples)
            self._changed.notify_all()
            return True

    def drop(self, worker: int) -> None:
        """Give a worker up; another one repeats its batch."""
        with self._changed:
            if dropped := self.in_flight.pop(worker, None):
                self._batches.put_back(worker, dropped.batch)
                self.redone += 1
            self.lost.setdefault(worker, time.monotonic() - dropped.since if dropped else 0.0)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until no batch is in flight, after the last one or for a pause; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: (self.over or self.paused) and not self.in_flight, seconds)

    def _rows(self, batch: int) -> int:
        return self._order.samples_after(batch) - self._order.samples_after(batch - 1)

    def progress(self) -> tuple[int, int] | None:
        """Return the number of updates and samples; None before a pause, while they still change."""
        with self._changed:
            return None if self.paused and self.in_flight else (self.updates, self.samples)

    def resume(self) -> None:
        """End a pause."""
        with self._changed:
            self.paused = False
            self._changed.notify_all()


class SyncTraining:
    """The mode sync: every step, the workers write the gradients of their shares to the servers, which apply them."""

    def __init__(self, context: PsContext, workers: list[Any]) -> None:
        self._context, self._workers = context, len(workers)
        self._needed = self._workers - context.job.params["backup_workers"]
        for worker in workers:
            worker.create_buffers()
        self._functions = [self._compile(index, worker) for index, worker in enumerate(workers)]
        self._apply = self._compile_apply(workers)
        self._seconds, self._dropped = WorkerSeconds(self._workers), 0
        self._tasks: list[queue.SimpleQueue[tuple[int, Any]]] = [queue.SimpleQueue() for _ in workers]
        self._results: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._busy: set[int] = set()

    def _compile(self, index: int, worker: Any) -> Any:
        tf = self._context.tf

        def step(rows: Tensor) -> Tensor:
            with tf.device(worker_device(index)):
                figures, pulled, gradients = build_gradient_step(tf, worker, rows)
                result = tf.stack(figures)
            written = worker.write_buffers(gradients, pulled)
            with tf.control_dependencies(written), tf.device(COORDINATOR):
                return tf.identity(result)

        signature = [tf.TensorSpec([None], tf.int32)]
        return tf.function(step, input_signature=signature, autograph=False).get_concrete_function()

    def _compile_apply(self, workers: list[Any]) -> Any:
        tf = self._context.tf

        def apply(shares: Tensor, scalars: Tensor) -> Tensor:
            with tf.control_dependencies(type(workers[0]).apply(workers, shares, scalars)), tf.device(COORDINATOR):
                return tf.constant(0)

        signature = [tf.TensorSpec([self._workers]), tf.TensorSpec([2])]
        return tf.function(apply, input_signature=signature, autograph=False).get_concrete_function()

    def warm_up(self) -> None:
        """Make a step of one row per worker without effect, for TensorFlow to compile."""
        tf = self._context.tf
        for function in self._functions:
            function(tf.constant(self._context.job.order.batch(1)[:1].astype(np.int32)))
        self._apply(tf.zeros([self._workers]), tf.zeros([2])).numpy()

    def train(self, resume: Checkpoint | None) -> Report:
        """Make all steps after the checkpoint."""
        context, order = self._context, self._context.job.order
        first = context.first_step(resume)
        for index in range(self._workers):
            threading.Thread(target=self._run_worker, args=(index,), daemon=True).start()
        for step in range(first, order.steps + 1):
            loss = self._step(step, order.batch(step))
            if context.pause_due(step, order.samples_after(step)):
                while self._busy:  # no worker may compute while the clock is stopped
                    self._next_result()
            context.step_done(step, loss)
        counts = {"gradients_dropped": float(self._dropped)} if self._needed < self._workers else {}
        return self._seconds.report(counts)

    def _step(self, step: int, rows: Any) -> float:
        """Make one step; returns the mean loss before it."""
        shares = [share(rows, index, self._workers) for index in range(self._workers)]
        asked = [index for index in range(self._workers) if len(shares[index])]
        needed = min(self._needed, len(asked))
        waiting = set(asked)
        losses: dict[int, float] = {}
        while len(losses) < needed:
            for index in waiting - self._busy:
                waiting.discard(index)
                self._busy.add(index)
                self._tasks[index].put((step, shares[index]))
            index, of_step, loss = self._next_result()
            if of_step == step:
                losses[index] = loss
        counts = np.array([len(part) if index in losses else 0 for index, part in enumerate(shares)])
        parts = (counts / counts.sum()).astype(np.float32)
        tf = self._context.tf
        self._apply(tf.constant(parts), tf.constant(self._context.scalars(step))).numpy()
        self._dropped += len(asked) - len(losses)
        return float(sum(parts[index] * loss for index, loss in losses.items()))

    def _next_result(self) -> tuple[int, int, float]:
        """Wait for the next worker; returns its index, its step and its loss."""
        index, step, result = self._results.get()
        self._busy.discard(index)
        if isinstance(result, Exception):
            raise result
        loss, computing, seconds = result
        self._seconds.add(index, computing, seconds)
        return index, step, loss

    def _run_worker(self, index: int) -> None:
        """Have one worker do its tasks. Run in its own thread."""
        tf = self._context.tf
        while True:
            step, rows = self._tasks[index].get()
            start = time.monotonic()
            try:
                loss, computing = self._functions[index](tf.constant(rows.astype(np.int32))).numpy().tolist()
                result: Any = loss, computing, time.monotonic() - start
            except Exception as error:  # the main thread raises it
                result = error
            self._results.put((index, step, result))
