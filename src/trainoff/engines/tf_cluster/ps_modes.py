"""The modes async and sync of tf-ps.

In async every worker pulls, computes and pushes at its own pace; in sync the gradients of all workers are averaged and
then applied, and the slowest may be left out.
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
    FIRST_S,
    HERE,
    STUCK_S,
    STUCK_STEPS,
    PsContext,
    WorkerSeconds,
    lost,
    row_numbers,
    server,
    settle,
    work,
    worker,
)
from trainoff.errors import TrainoffError

Tensor = Any


class Numbered:
    """Rows that every worker has: it is told their numbers."""

    shared = True  # so that another worker can make an update again that was lost

    def __init__(self, order: Order) -> None:
        self._order = order

    def first(self) -> Any:
        """What a worker is told to practise with."""
        return self.next(0, 1)

    def ready(self, worker: int, over: Callable[[], bool]) -> bool:
        """Wait until there are rows for another update of a worker; False if the training is over before."""
        return not over()

    def next(self, worker: int, batch: int) -> Any:
        """What a worker is told for its next update."""
        return row_numbers(self._order.batch(batch))


class Asynchronous:
    """One thread for each worker, which has the worker make one update after the other."""

    def __init__(self, context: PsContext, learners: list[Any], rows: Numbered | None = None) -> None:
        self._context, self._workers = context, len(learners)
        self._rows = rows or Numbered(context.job.order)
        with context.tf.device(server(0)):
            self._version = context.tf.Variable(0, dtype=context.tf.int64)  # how many updates have been applied
        self._functions = [self._compile(number, learner) for number, learner in enumerate(learners)]
        self._spent, self._staleness = WorkerSeconds(self._workers), Counter[int]()
        self._fed = [0.0] * self._workers  # seconds that each waited for rows
        self._loss: float | None = None
        self._slowest = 0.0
        self._errors: list[Exception] = []
        self._told: set[int] = set()  # of whose loss the driver knows

    def _compile(self, number: int, learner: Any) -> Any:
        """One update by one worker, as a graph that spans the worker and the servers."""
        tf, aware = self._context.tf, self._context.job.params["staleness_aware"]

        # What one machine tells another costs a call; so the servers' figures go to the coordinator directly, and
        # nothing waits that need not.
        def step(rows: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            with tf.device(server(0)):
                seen = self._version.read_value()  # before the weights, so that none is younger than it seems
            with tf.device(worker(number)):
                done = work(tf, learner, rows, [seen])
                if aware:
                    with tf.control_dependencies(done.gradients):
                        behind = tf.cast(self._version.read_value() - seen, tf.float32)
                    numbers = numbers * tf.stack([1 / (1 + behind), 1.0])
                pushed = learner.push(done.gradients, done.pulled, numbers)
                result = tf.stack([done.loss, done.computing, tf.cast(seen, tf.float64)])
            with tf.device(server(0)), tf.control_dependencies(pushed):
                version = self._version.assign_add(1)
            with tf.device(HERE):
                return tf.identity(result), tf.identity(version)

        signature = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([2])]
        return tf.function(step, input_signature=signature, autograph=False).get_concrete_function()

    def warm_up(self) -> None:
        """Have every worker make an update that is forgotten."""
        for number in range(self._workers):
            self._update(number, self._rows.first(), (0.0, 0.0))

    def _update(self, number: int, rows: Any, numbers: tuple[float, float]) -> tuple[float, float, int]:
        """Have a worker make one update; returns the loss, the seconds it computed, and how many updates it missed."""
        tf = self._context.tf
        result, version = self._functions[number](tf.constant(rows), tf.constant(numbers))
        loss, computing, seen = result.numpy().tolist()
        return loss, computing, int(version) - int(seen) - 1

    def train(self, resume: Checkpoint | None) -> Report:
        """All updates that are not in the checkpoint yet."""
        context, order = self._context, self._context.job.order
        done = resume.done if resume else frozenset()
        settle(self._version, len(done))
        self._scheduler = scheduler = AsyncScheduler(
            order, self._workers, self._pause_after, context.job.params.get("max_staleness"), done
        )
        if scheduler.samples:
            context.leader.snapshot_schedule.taken(scheduler.samples)
        self._hands = [threading.Thread(target=self._work, args=(at,), daemon=True) for at in range(self._workers)]
        for hand in self._hands:
            hand.start()
        while True:
            still = scheduler.wait(REPORT_S)
            self._give_up_the_stuck()
            if counted := scheduler.counted():
                if context.checkpoints.due(counted[0]):
                    context.leader.report_now()
                context.leader.progress(counted[0], self._loss, context.store.weights, counted[1])
            if still and scheduler.over:
                return self._report()
            if still:
                if context.checkpoints.due(scheduler.updates):
                    context.checkpoints.save(context.store.state, scheduler.applied)
                scheduler.go_on()

    def _pause_after(self, updates: int, samples: int) -> bool:
        return self._context.leader.snapshot_schedule.wanted(updates, samples) or self._context.checkpoints.due(updates)

    def _work(self, number: int) -> None:
        """Be the hand of one worker."""
        scheduler = self._scheduler
        while self._wait_for_rows(number) and (turn := scheduler.take(number)):
            batch, update = turn
            start = time.monotonic()
            try:
                rows, numbers = self._rows.next(number, batch), self._context.numbers(update)
                loss, computing, stale = self._update(number, rows, numbers)
            except Exception as error:
                self._errors.append(error)
                scheduler.lose(number)
                return
            whole = time.monotonic() - start
            if scheduler.done(number):  # what a worker says that had been given up does not count
                self._loss, self._slowest = loss, max(self._slowest, whole)
                self._spent.book(number, computing, whole)
                self._staleness[stale] += 1

    def _wait_for_rows(self, number: int) -> bool:
        start = time.monotonic()
        try:
            return self._rows.ready(number, lambda: self._scheduler.over)
        except Exception as error:
            self._errors.append(error)
            self._scheduler.lose(number)
            return False
        finally:
            self._fed[number] += time.monotonic() - start

    def _give_up_the_stuck(self) -> None:
        """Whoever says nothing for long is lost, though its process may live; if all are, the driver sees to it."""
        patience = max(STUCK_S, STUCK_STEPS * self._slowest) if self._slowest else FIRST_S
        for number, flight in list(self._scheduler.flying.items()):
            if time.monotonic() - flight.since > patience:
                self._scheduler.lose(number)
        for error in self._errors:
            if not lost(self._context.tf, error) or len(self._scheduler.lost) == self._workers or not self._rows.shared:
                raise error
        if self._scheduler.lost and not self._rows.shared:
            raise TrainoffError(f"worker-{min(self._scheduler.lost)} is stuck, and nobody else has its rows")
        for number in self._scheduler.lost.keys() - self._told:
            self._told.add(number)
            batches = 1 if self._scheduler.lost[number] else 0  # silent for no time: it had none
            self._context.leader.lost(f"worker-{number}", batches * self._context.job.order.batch_size)

    def _report(self) -> Report:
        scheduler, counts = self._scheduler, {}
        for number, hand in enumerate(self._hands):
            if number not in scheduler.lost:
                hand.join()  # it may still be booking its last update
        if scheduler.lost:
            detection = sum(scheduler.lost.values())
            counts = {"workers_lost": len(scheduler.lost), "detection_s": detection, "steps_redone": scheduler.redone}
        histogram = {str(stale): float(self._staleness[stale]) for stale in sorted(self._staleness)}
        more = {"staleness": histogram}
        if not self._rows.shared:
            more["feeding_s"] = {f"worker-{number}": seconds for number, seconds in enumerate(self._fed)}
        return self._spent.report(counts, **more)


class BatchAssignment:
    """Batches for every worker: first those of its own part of the order, then the others'."""

    def __init__(self, steps: int, workers: int, done: Collection[int] = ()) -> None:
        self._left = [
            deque(step for step in range(number + 1, steps + 1, workers) if step not in done)
            for number in range(workers)
        ]

    def next(self, worker: int) -> int | None:
        """The next batch for a worker; None if none is left."""
        part = self._left[worker] or max(self._left, key=len)
        return part.popleft() if part else None

    def put_back(self, worker: int, batch: int) -> None:
        self._left[worker].appendleft(batch)


@dataclass
class Flight:
    """A batch on its way: since when, and how many others may be applied before it."""

    batch: int
    since: float
    overtaken: int


class AsyncScheduler:
    """Lets a worker go on with its next batch, or wait.

    `pause_after(updates, samples)` says after which updates all must wait until `go_on`. No gradient is applied after
    more than `most_stale` others that its weights had not seen.
    """

    def __init__(
        self,
        order: Order,
        workers: int,
        pause_after: Callable[[int, int], bool],
        most_stale: int | None = None,
        done: Collection[int] = (),
    ) -> None:
        self._order, self._pause_after, self._most_stale = order, pause_after, most_stale
        self._deal = BatchAssignment(order.steps, workers, done)
        self.applied = set(done)
        self.samples = sum(map(self._rows, done))
        self.started = len(self.applied)
        self.flying: dict[int, Flight] = {}
        self.lost: dict[int, float] = {}  # the workers that were given up, and for how long they had been silent
        self.redone = 0
        self.paused = False
        self._change = threading.Condition()

    @property
    def updates(self) -> int:
        return len(self.applied)

    @property
    def over(self) -> bool:
        return self.updates == self._order.steps

    def take(self, worker: int) -> tuple[int, int] | None:
        """The next batch and the number of its update; waits for its turn, None if there is nothing more to do."""
        with self._change:
            while not self.over and worker not in self.lost:
                if self._may_go() and (batch := self._deal.next(worker)):
                    for flight in self.flying.values():
                        flight.overtaken += 1
                    self.flying[worker] = Flight(batch, time.monotonic(), len(self.flying))
                    self.started += 1
                    return batch, min(self.started, self._order.steps)
                self._change.wait()
        return None

    def _may_go(self) -> bool:
        if self.paused:
            return False
        if self._most_stale is None:
            return True
        others = self.flying.values()
        return len(others) <= self._most_stale and all(flight.overtaken < self._most_stale for flight in others)

    def done(self, worker: int) -> bool:
        """A worker's batch has been applied; False if the worker had been given up meanwhile."""
        with self._change:
            flight = self.flying.pop(worker, None)
            if flight is None:
                return False
            self.applied.add(flight.batch)
            self.samples += self._rows(flight.batch)
            self.paused = self.paused or self._pause_after(self.updates, self.samples)
            self._change.notify_all()
            return True

    def lose(self, worker: int) -> None:
        """Give a worker up; another one makes its batch again."""
        with self._change:
            if flight := self.flying.pop(worker, None):
                self._deal.put_back(worker, flight.batch)
                self.redone += 1
            self.lost.setdefault(worker, time.monotonic() - flight.since if flight else 0.0)
            self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all stand still, after the last batch or for a pause; False if that takes longer."""
        with self._change:
            return self._change.wait_for(lambda: (self.over or self.paused) and not self.flying, seconds)

    def _rows(self, batch: int) -> int:
        return self._order.samples_after(batch) - self._order.samples_after(batch - 1)

    def counted(self) -> tuple[int, int] | None:
        """How many updates and samples there have been; None on the way to a pause, when the count still changes."""
        with self._change:
            return None if self.paused and self.flying else (self.updates, self.samples)

    def go_on(self) -> None:
        """The end of a pause."""
        with self._change:
            self.paused = False
            self._change.notify_all()


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
        context.leader.snapshot_schedule.taken(order.samples_after(first - 1))
        for number in range(self._workers):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()
        for step in range(first, order.steps + 1):
            loss = self._step(step, order.batch(step))
            if context.leader.snapshot_schedule.wanted(step, order.samples_after(step)) or context.checkpoints.due(
                step
            ):
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
