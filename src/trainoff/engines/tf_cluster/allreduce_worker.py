"""A worker of tf-allreduce: it learns from its share of every batch, and all add up their gradients.

`python -m trainoff.engines.tf_cluster.allreduce_worker ASSIGNMENT WORKER`; the first one leads and talks to the driver.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.batch_order import share
from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient
from trainoff.engines.shared.shipping import Rows, from_files
from trainoff.engines.shared.watch import seconds_by_worker
from trainoff.engines.tensorflow import predict, warm_up
from trainoff.engines.tensorflow.network import TfLogistic, TfNetwork, step_numbers
from trainoff.engines.tf_cluster.coordinator import PsAssignment, prepare_tensorflow, read_assignment

Tensor = Any


class AllReduceTraining:
    """The workers that TensorFlow's MultiWorkerMirroredStrategy joins, and the clock of their agreeing."""

    def __init__(self, tf: Any, addresses: list[str], number: int) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": addresses}), task_type="worker", task_id=number, rpc_layer="grpc"
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._tf, self.number, self.workers = tf, number, len(addresses)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        self._took = tf.Variable(0.0, dtype=tf.float64)  # seconds, for the last sum

    def run(self, step: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """Build a step that all workers make at the same time."""
        return self._strategy.run(step, inputs)

    def sum(self, parts: list[Tensor]) -> list[Tensor]:
        """Add up what all workers have found; of sparse slices only those that there are travel."""
        tf = self._tf
        with tf.control_dependencies(self._numbers_of(parts)):
            start = tf.timestamp()
        with tf.control_dependencies([start]):
            same = [self._held(part) for part in parts]
        context = tf.distribute.get_replica_context()
        found: list[Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, same)
        with tf.control_dependencies(self._numbers_of(found)):
            self._took.assign(tf.timestamp() - start)
        return found

    def _numbers_of(self, parts: list[Tensor]) -> list[Tensor]:
        """The values of each part, which a clock can wait for."""
        return [part.values if isinstance(part, self._tf.IndexedSlices) else part for part in parts]

    def _held(self, part: Tensor) -> Tensor:
        """The same tensor, not before the clock has been read."""
        tf = self._tf
        if isinstance(part, tf.IndexedSlices):
            return tf.IndexedSlices(tf.identity(part.values), tf.identity(part.indices), part.dense_shape)
        return tf.identity(part)

    @property
    def took(self) -> float:
        return float(self._took)

    def tell_all(self, figures: NDArray[np.float64]) -> NDArray[np.float64]:
        """The figures of all workers, each of which has as many; returns when all have told theirs."""
        tf = self._tf
        told = np.zeros((self.workers, *figures.shape))
        told[self.number] = figures

        found: NDArray[np.float64] = self._sum_of_all(tf.constant(told)).numpy()
        return found

    @cached_property
    def _sum_of_all(self) -> Any:
        """Sums what every worker has; TensorFlow compiles it for every shape that it sees first."""
        tf = self._tf

        def tell(part: Tensor) -> Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(part))

        return tf.function(lambda part: self._strategy.run(tell, (part,)), autograph=False)

    def mine(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """This worker's rows of a batch, and which part of it they are.

        Where a batch has fewer rows than there are workers, somebody's part is nothing; the others still need it.
        """
        own = share(rows, self.number, self.workers)
        return (own, len(own) / len(rows)) if len(own) else (rows[:1], 0.0)


class MirroredNetwork(TfNetwork):
    """A network whose gradient is the sum of all workers'."""

    def __init__(self, tf: Any, job: Job, together: AllReduceTraining) -> None:
        self._together = together
        super().__init__(tf, job)

    def _sizes(self, job: Job) -> dict[int, int]:
        # By the size of the whole batch: all workers must take the same step, whatever their shares are.
        return {size: len(self._together.mine(np.arange(size))[0]) for size in job.order.batch_sizes}

    def learn(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        mine, part = self._together.mine(rows)
        return self._steps[len(rows)](mine, *step_numbers(self._optimizer, rate, step), part)

    def _step(self, *inputs: Tensor) -> Tensor:
        return self._together.run(super()._step, inputs)

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, gradient = super()._gradients(x, y, numbers)
        loss, *gradient = self._together.sum([numbers[2] * part for part in (loss, *gradient)])
        return loss, gradient


class MirroredLogistic(TfLogistic):
    """Logistic regression whose changes are those of all workers."""

    def __init__(self, tf: Any, job: Job, together: AllReduceTraining) -> None:
        self._together = together
        super().__init__(tf, job)

    def learn(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        mine, part = self._together.mine(rows)
        return self._learn(mine, rate, part)

    def _step(self, *inputs: Tensor) -> Tensor:
        return self._together.run(super()._step, inputs)

    def _changes(self, *inputs: Tensor) -> list[Tensor]:
        tf = self._tf
        loss, columns, changes, change = super()._changes(*inputs)
        touched, which = tf.unique(columns)
        merged = tf.math.unsorted_segment_sum(changes, which, tf.size(touched))
        slices = tf.IndexedSlices(merged, touched, tf.constant([self.weights[0].shape[0]]))
        slices, change, loss = self._together.sum([slices, change, loss])
        return [loss, slices.indices, slices.values, change]


def main() -> None:
    """Work to the end of the training; who leads labels what is asked for then, until the driver hangs up."""
    assignment, number = read_assignment(sys.argv[1]), int(sys.argv[2])
    learner, leader = learn(prepare_tensorflow(assignment.job.cores), assignment, number)
    if leader:
        leader.serve_requests(lambda rows: label(learner, rows))


def learn(
    tf: Any, assignment: PsAssignment, number: int, fetch: Callable[[], None] = lambda: None
) -> tuple[Any, ControlClient | None]:
    """Be one of the workers, from the first word to the last step; returns what has learnt, and the leader's line.

    `fetch` brings the rows to where the assignment says that they are.
    """
    together, leader = join(tf, assignment, number)
    fetch()
    job = from_files(assignment.job)
    if leader:
        leader.report_state("shipped")
    kind = MirroredLogistic if job.model.kind == "logreg" else MirroredNetwork
    learner = kind(tf, job, together)
    warm_up(job, learner)
    train(assignment, job, learner, together, leader)
    return learner, leader


def join(tf: Any, assignment: PsAssignment, number: int) -> tuple[AllReduceTraining, ControlClient | None]:
    """Meet the other workers; the first one calls the driver."""
    together = AllReduceTraining(tf, assignment.addresses["worker"], number)
    leader = assignment.call() if number == 0 else None
    if leader:
        leader.report_state("connected")
    return together, leader


def train(
    assignment: PsAssignment, job: Job, learner: Any, together: AllReduceTraining, leader: ControlClient | None
) -> None:
    """All steps after the checkpoint, if there is one."""
    resume, first = assignment.checkpoints.load(), 1
    if resume:
        first = len(resume.done) + 1
        for variable, value in zip(learner.state, resume.state, strict=True):
            variable.assign(value)
        assignment.snapshot_schedule.taken(job.order.samples_after(first - 1))
    times = np.zeros((job.order.steps, 2))
    together.tell_all(times[first - 1 :])  # for TensorFlow to compile what is told at the end
    if leader:
        leader.wait_for_start()
    for step in range(first, job.order.steps + 1):
        start = time.monotonic()
        loss = learner.learn(step, job.order.batch(step), float(job.rates[step - 1]))
        times[step - 1] = time.monotonic() - start, together.took
        if leader:
            assignment.checkpoints.step_done(
                leader, step, loss, lambda: [part.numpy() for part in learner.weights], learner.state
            )
    end(together, leader, times[first - 1 :])


def end(together: AllReduceTraining, leader: ControlClient | None, times: NDArray[np.float64]) -> None:
    """Tell the driver what the workers did in which time, and that all is done."""
    every = together.tell_all(times)
    if leader:
        names = [f"worker-{number}" for number in range(together.workers)]
        leader.end({"counts": {}, "breakdowns": seconds_by_worker(every, names)})


def label(learner: Any, rows: Rows) -> NDArray[np.int64]:
    """The class of each row."""
    return predict(learner.labels, rows.mapped())


if __name__ == "__main__":
    main()
