"""A worker of tf-allreduce: it computes the gradient of its share of every batch, and all workers sum theirs.

`python -m trainoff.engines.tf_cluster.allreduce_worker ASSIGNMENT WORKER`; worker 0 reports to the driver.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.batch_order import share
from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient
from trainoff.engines.shared.shipping import from_files
from trainoff.engines.shared.watch import seconds_by_worker
from trainoff.engines.tensorflow import predict, warm_up
from trainoff.engines.tensorflow.network import TfLogistic, TfNetwork, step_numbers
from trainoff.engines.tf_cluster.coordinator import TfAssignment, prepare_tensorflow, read_assignment
from trainoff.models import find_builder

Tensor = Any


class AllReduce:
    """The workers of TensorFlow's MultiWorkerMirroredStrategy, and the seconds that their sums take."""

    def __init__(self, tf: Any, addresses: list[str], rank: int) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": addresses}), task_type="worker", task_id=rank, rpc_layer="grpc"
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._tf, self.rank, self.workers = tf, rank, len(addresses)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        self._seconds = tf.Variable(0.0, dtype=tf.float64)

    def sum(self, parts: list[Tensor]) -> list[Tensor]:
        """Sum the tensors of all workers; of sparse slices only the slices are sent."""
        tf = self._tf
        with tf.control_dependencies(parts):
            start = tf.timestamp()
        with tf.control_dependencies([start]):
            parts = [tf.identity(part) for part in parts]
        context = tf.distribute.get_replica_context()
        sums: list[Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, parts)
        with tf.control_dependencies(sums):
            self._seconds.assign(tf.timestamp() - start)
        return sums

    @property
    def seconds(self) -> float:
        """The seconds of the last sum on this worker."""
        return float(self._seconds)

    def all_gather(self, figures: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the figures of all workers, which have the same shape, once all have sent theirs."""
        placed = np.zeros((self.workers, *figures.shape))
        placed[self.rank] = figures
        gathered: NDArray[np.float64] = self._sum_figures(self._tf.constant(placed)).numpy()
        return gathered

    @cached_property
    def _sum_figures(self) -> Any:
        """Sums an array over the workers; TensorFlow compiles it once per shape."""
        tf = self._tf

        def reduce(part: Tensor) -> Tensor:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(part))

        return tf.function(lambda part: self.strategy.run(reduce, (part,)), autograph=False)

    def share(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """Return this worker's rows of a batch, and their fraction of it.

        A worker without rows in a small batch takes one with weight 0: the others need its part of the sum.
        """
        mine = share(rows, self.rank, self.workers)
        return (mine, len(mine) / len(rows)) if len(mine) else (rows[:1], 0.0)


class MirroredNetwork(TfNetwork):
    """A network whose gradient is the sum over all workers."""

    def __init__(self, tf: Any, job: Job, allreduce: AllReduce) -> None:
        self._allreduce = allreduce
        super().__init__(tf, job)

    def _sizes(self, job: Job) -> dict[int, int]:
        # By the size of the whole batch: all workers must make the same step, however many rows they have.
        return {size: len(self._allreduce.share(np.arange(size))[0]) for size in job.order.batch_sizes}

    def train_step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        mine, fraction = self._allreduce.share(rows)
        return self._steps[len(rows)](mine, *step_numbers(self._optimizer, rate, step), fraction)

    def _step(self, *inputs: Tensor) -> Tensor:
        return self._allreduce.strategy.run(super()._step, inputs)

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, gradient = super()._gradients(x, y, numbers)
        loss, *gradient = self._allreduce.sum([numbers[2] * part for part in (loss, *gradient)])
        return loss, gradient


class MirroredLogistic(TfLogistic):
    """Logistic regression whose updates are the sum over all workers."""

    def __init__(self, tf: Any, job: Job, allreduce: AllReduce) -> None:
        self._allreduce = allreduce
        super().__init__(tf, job)

    def train_step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        mine, fraction = self._allreduce.share(rows)
        return self._train_on(mine, rate, fraction)

    def _step(self, *inputs: Tensor) -> Tensor:
        return self._allreduce.strategy.run(super()._step, inputs)

    def _changes(self, *inputs: Tensor) -> list[Tensor]:
        tf = self._tf
        loss, columns, changes, change = super()._changes(*inputs)
        touched, which = tf.unique(columns)
        merged = tf.math.unsorted_segment_sum(changes, which, tf.size(touched))
        slices = tf.IndexedSlices(merged, touched, tf.constant([self._weight.shape[0]]))
        slices, change, loss = self._allreduce.sum([slices, change, loss])
        return [loss, slices.indices, slices.values, change]


BUILDERS: Mapping[str, Callable[[Any, Job, AllReduce], TfNetwork | TfLogistic]] = {
    "Network": MirroredNetwork,
    "Logreg": MirroredLogistic,
}


def main() -> None:
    """Train, then answer predictions as worker 0 until the driver disconnects."""
    assignment, rank = read_assignment(sys.argv[1]), int(sys.argv[2])
    network, control = run_worker(prepare_tensorflow(assignment.job.cores), assignment, rank)
    if control:
        control.serve_requests(lambda rows: predict(network.predict, rows.mapped()))


def run_worker(
    tf: Any, assignment: TfAssignment, rank: int, fetch: Callable[[], None] = lambda: None
) -> tuple[Any, ControlClient | None]:
    """Join the other workers and train; returns the network, and worker 0's connection to the driver.

    `fetch` writes the rows to the files that the assignment names.
    """
    allreduce, control = join(tf, assignment, rank)
    fetch()
    job = from_files(assignment.job)
    if control:
        control.report_state("shipped")
    network = find_builder(BUILDERS, job.model)(tf, job, allreduce)
    warm_up(job, network)
    train(assignment, job, network, allreduce, control)
    return network, control


def join(tf: Any, assignment: TfAssignment, rank: int) -> tuple[AllReduce, ControlClient | None]:
    """Join the other workers; worker 0 connects to the driver."""
    allreduce = AllReduce(tf, assignment.addresses["worker"], rank)
    control = assignment.connect() if rank == 0 else None
    if control:
        control.report_state("connected")
    return allreduce, control


def train(
    assignment: TfAssignment, job: Job, network: Any, allreduce: AllReduce, control: ControlClient | None
) -> None:
    """Make all steps after the last checkpoint."""
    resume, done = assignment.checkpoints.load(), 0
    if resume:
        done = len(resume.done)
        for variable, value in zip(network.state, resume.state, strict=True):
            variable.assign(value)
        assignment.snapshot_schedule.taken(job.order.samples_after(done))
    times = np.zeros((job.order.steps - done, 2))
    allreduce.all_gather(times)  # for TensorFlow to compile
    if control:
        control.wait_for_start()
    for step in range(done + 1, job.order.steps + 1):
        start = time.monotonic()
        loss = network.train_step(step, job.order.batch(step), float(job.rates[step - 1]))
        times[step - done - 1] = time.monotonic() - start, allreduce.seconds
        if control:
            weights, state = lambda: [part.numpy() for part in network.weights], lambda: network.state
            assignment.checkpoints.step_done(control, job.order, step, loss, weights, state)
    end(allreduce, control, times)


def end(allreduce: AllReduce, control: ControlClient | None, times: NDArray[np.float64]) -> None:
    """Report the end of the training, and the seconds of all workers, to the driver."""
    gathered = allreduce.all_gather(times)
    if control:
        names = [f"worker-{rank}" for rank in range(allreduce.workers)]
        control.end({"counts": {}, "breakdowns": seconds_by_worker(gathered, names)})


if __name__ == "__main__":
    main()
