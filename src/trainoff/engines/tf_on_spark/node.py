"""A TensorFlow process on an executor: a worker, a parameter server, or the coordinator.

`python -m trainoff.engines.tf_on_spark.node CONFIG`
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient
from trainoff.engines.tensorflow import predict
from trainoff.engines.tensorflow.network import differentiate, make_predictor, step_numbers
from trainoff.engines.tf_cluster.allreduce_worker import AllReduce, MirroredNetwork, end, join, run_worker
from trainoff.engines.tf_cluster.coordinator import TfAssignment, coordinate, prepare_tensorflow
from trainoff.engines.tf_cluster.ps_context import DenseWorker, PackedParameters, PsContext, worker_device
from trainoff.engines.tf_cluster.ps_modes import AsyncTraining, SharedRows
from trainoff.engines.tf_cluster.serve import serve
from trainoff.engines.tf_on_spark.feed import Block, FeedReader, PredictRequest
from trainoff.models import unflatten

if TYPE_CHECKING:
    from trainoff.engines.tf_on_spark.cluster import NodeConfig

SPOOL = Path("spool")  # of a worker, in the folder of its executor
WRITTEN, READ = SPOOL / "written", SPOOL / "read"  # the number of the last batch
MAX_SPOOLED = 32  # batches
POLL_S = 0.005
REMOTE_POLL_S = 0.02  # polling another machine costs more

Tensor = Any


def main() -> None:
    """Do what the config says, until the node launcher ends."""
    threading.Thread(target=_exit_with_launcher, daemon=True).start()
    with Path(sys.argv[1]).open("rb") as file:
        node: NodeConfig = pickle.load(file)
    Path(sys.argv[1]).unlink()  # it holds secrets
    job = node.assignment.job
    if node.job == "ps":
        serve("ps", node.index, ceil(job.cores), node.address).join()
    elif node.job == "chief":
        prepare_tensorflow(job.cores)
        fetch(node)
        coordinate(node.assignment, build_spooled_mode if job.params["feed"] == "spark" else None)
    elif job.mode == "sync":
        run_allreduce_worker(node)
    else:
        run_ps_worker(node)


def _exit_with_launcher() -> None:
    os.read(0, 1)
    os._exit(1)


def run_allreduce_worker(node: NodeConfig) -> None:
    """Train with all other workers, then reply to requests."""
    job = node.assignment.job
    tf, feed = prepare_tensorflow(job.cores), FeedReader(*node.queues)
    if job.params["feed"] == "spark":
        train_on_feed(tf, node.assignment, node.index, feed)
    else:
        run_worker(tf, node.assignment, node.index, lambda: fetch(node))
    serve_requests(tf, node, feed)


def run_ps_worker(node: NodeConfig) -> None:
    """Compute for the coordinator, write the rows that are pushed to the spool, and reply to requests."""
    job = node.assignment.job
    tf, feed = prepare_tensorflow(job.cores), FeedReader(*node.queues)
    fetch(node)
    spool = BatchSpool(job) if job.params["feed"] == "spark" else None
    _server = serve("worker", node.index, ceil(job.cores), node.address)  # it ends with the last reference to it
    serve_requests(tf, node, feed, spool)


def serve_requests(tf: Any, node: NodeConfig, feed: FeedReader, spool: BatchSpool | None = None) -> None:
    """Reply to all requests in the feed, and write the rows between them to the spool."""
    model, predictor = node.assignment.job.model, None
    while (item := feed.next()) is not None:
        if isinstance(item, PredictRequest):
            if item.weights is not None:
                predictor = make_predictor(tf, model, [tf.constant(part) for part in unflatten(model, item.weights)])
            assert predictor
            feed.reply(predict(predictor, item.x))
        else:
            assert spool
            for block in item:
                spool.write(*block)


def fetch(node: NodeConfig) -> None:
    """Read the rows from the storage, if there is one."""
    if node.storage:
        rows: Any = node.assignment.job.data.x_train
        node.storage.fetch(Path(rows.path).parent)


class FeedNetwork(MirroredNetwork):
    """A network whose workers bring different numbers of rows to a step: a gradient is weighted by its rows."""

    def __init__(self, tf: Any, job: Job, allreduce: AllReduce) -> None:
        self._rows = tf.Variable(0.0)
        super().__init__(tf, job, allreduce)

    def _sizes(self, job: Job) -> dict[int, int]:
        return {0: 0}  # one step for all sizes

    def _compile(self, job: Job, size: int) -> Callable[..., float]:
        tf = self._tf
        signature = [tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([3])]
        compiled = tf.function(self._step, signature, autograph=False).get_concrete_function()
        return lambda *inputs: float(compiled(*map(tf.convert_to_tensor, inputs)))

    def train_on(self, step: int, block: Block, rate: float) -> float:
        """Make one step on these rows and those of the other workers; returns the loss before it."""
        x, y = block
        rows = len(y)
        if not rows:  # the others need this worker's part of the sum, even if it is zero
            x, y = np.zeros((1, x.shape[1]), np.float32), np.zeros(1, np.int64)
        numbers = np.array([*step_numbers(self._optimizer, rate, step), rows], np.float32)
        return self._steps[0](x, y, numbers)

    @property
    def rows(self) -> int:
        """The rows of all workers in the last step."""
        return int(self._rows)

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, gradient = differentiate(self._tf, self._model, self.weights, x, y)
        count = numbers[2]
        rows, *sums = self._allreduce.sum([count, *(count * part for part in (loss, *gradient))])
        self._rows.assign(rows)
        loss, *gradient = (self._tf.math.divide_no_nan(part, rows) for part in sums)
        return loss, gradient


def train_on_feed(tf: Any, assignment: TfAssignment, rank: int, feed: FeedReader) -> None:
    """Train with all other workers on the rows that Spark pushes."""
    allreduce, control = join(tf, assignment, rank)
    job = assignment.job
    if control:
        control.report_state("shipped")
    network = FeedNetwork(tf, job, allreduce)
    no_rows = np.zeros((0, job.data.x_train.shape[1]), np.float32), np.zeros(0, np.int64)
    network.train_on(1, no_rows, 0.0)  # for TensorFlow to compile
    times, samples, batches = np.zeros((job.order.steps, 3)), 0, feed.batches()
    allreduce.all_gather(times)  # for the same reason
    if control:
        control.wait_for_start()
    for step in range(1, job.order.steps + 1):
        start = time.monotonic()
        block = next(batches)
        fed = time.monotonic()
        loss = network.train_on(step, block, float(job.rates[step - 1]))
        times[step - 1] = time.monotonic() - fed, allreduce.seconds, fed - start
        samples += network.rows
        if control:
            control.progress(step, loss, lambda: [part.numpy() for part in network.weights], samples)
    end(allreduce, control, times)


class BatchSpool:
    """The next batches of an asynchronous worker: files, which TensorFlow's graph reads.

    The coordinator runs the graph from another machine, so it can reach no queue of this process.
    """

    def __init__(self, job: Job) -> None:
        shutil.rmtree(SPOOL, ignore_errors=True)  # of an earlier cluster
        SPOOL.mkdir()
        READ.write_text("0")
        self._written = self._removed = -1
        # Batch 0, to warm up with.
        self.write(np.zeros((1, job.data.x_train.shape[1]), np.float32), np.zeros(1, np.int64))

    def write(self, x: Any, y: Any) -> None:
        """Add a batch, as soon as the spool is not full."""
        while self._written - self._remove_read() >= MAX_SPOOLED:
            time.sleep(POLL_S)
        self._written += 1
        np.ascontiguousarray(x).tofile(SPOOL / f"{self._written}.x")
        np.ascontiguousarray(y).tofile(SPOOL / f"{self._written}.y")
        draft = WRITTEN.with_suffix(".draft")
        draft.write_text(str(self._written))
        draft.replace(WRITTEN)

    def _remove_read(self) -> int:
        """Remove the batches that were read; returns the number of batches removed so far."""
        with suppress(ValueError):  # the file is being written
            read = int(READ.read_text())
            while self._removed < read - 1:
                self._removed += 1
                for suffix in ("x", "y"):
                    (SPOOL / f"{self._removed}.{suffix}").unlink()
        return self._removed + 1


class SpooledWorker(DenseWorker):
    """A worker's part of the graph, with rows from its spool."""

    def __init__(self, tf: Any, job: Job, store: PackedParameters, index: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._width = job.data.x_train.shape[1]
        self._buffers = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """Return the batch of a number."""
        tf = self._tf
        number = tf.strings.as_string(rows[0])
        name = tf.strings.join([f"{SPOOL}/", number])
        x = tf.io.decode_raw(tf.io.read_file(tf.strings.join([name, ".x"])), tf.float32)
        y = tf.io.decode_raw(tf.io.read_file(tf.strings.join([name, ".y"])), tf.int64)
        with tf.control_dependencies([x, y]):
            tf.io.write_file(str(READ), number)
        return [tf.reshape(x, [-1, self._width]), y]


class SpooledRows(SharedRows):
    """The rows in the workers' spools: an update is the number of the worker's next batch there."""

    shared = False

    def __init__(self, tf: Any, workers: int) -> None:
        self._read_written = [self._compile(tf, index) for index in range(workers)]
        self._written, self._next = [0] * workers, [1] * workers

    def _compile(self, tf: Any, index: int) -> Callable[[], int]:
        """Compile what reads the number of the last batch in a worker's spool."""

        def read(name: Tensor) -> Tensor:  # a constant name would be read once and for all
            with tf.device(worker_device(index)):
                return tf.strings.to_number(tf.io.read_file(name), tf.int64)

        compiled = tf.function(read, [tf.TensorSpec([], tf.string)], autograph=False).get_concrete_function()
        return lambda: int(compiled(tf.constant(str(WRITTEN))))

    def first(self) -> Any:
        return np.zeros(1, np.int32)

    def ready(self, worker: int, over: Callable[[], bool]) -> bool:
        while self._written[worker] < self._next[worker]:
            if over():
                return False
            self._written[worker] = self._read_written[worker]()
            if self._written[worker] < self._next[worker]:
                time.sleep(REMOTE_POLL_S)
        return True

    def next(self, worker: int, batch: int) -> Any:
        self._next[worker] += 1
        return np.array([self._next[worker] - 1], np.int32)


def build_spooled_mode(tf: Any, assignment: TfAssignment, control: ControlClient) -> tuple[Any, Any]:
    """Create the variables on the servers, and asynchronous training from the workers' spools."""
    job = assignment.job
    store = PackedParameters(tf, job, len(assignment.addresses["ps"]))
    context = PsContext(tf, job, store, control, assignment.checkpoints)
    workers = [SpooledWorker(tf, job, store, index) for index in range(job.workers)]
    return context, AsyncTraining(context, workers, SpooledRows(tf, job.workers))


if __name__ == "__main__":
    main()
