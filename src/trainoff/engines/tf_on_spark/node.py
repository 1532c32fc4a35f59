"""A TensorFlow process on an executor: a worker, a parameter server, or the coordinator.

`python -m trainoff.engines.tf_on_spark.node POST`
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
from trainoff.engines.tensorflow.network import differentiate, step_numbers
from trainoff.engines.tf_cluster.allreduce_worker import AllReduceTraining, MirroredNetwork, end, join
from trainoff.engines.tf_cluster.coordinator import PsAssignment
from trainoff.engines.tf_cluster.gradients import DenseGradients
from trainoff.engines.tf_cluster.ps_context import PackedParameters, PsContext, worker
from trainoff.engines.tf_cluster.ps_modes import Asynchronous, Numbered
from trainoff.engines.tf_cluster.serve import serve
from trainoff.engines.tf_on_spark.feed import Block, Tap
from trainoff.files import atomic_write

if TYPE_CHECKING:
    from trainoff.engines.tf_on_spark.cluster import NodePost
    from trainoff.engines.tf_on_spark.feed import Tap


def main() -> None:
    """Do what the post says, until whoever started this process ends."""
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    with Path(sys.argv[1]).open("rb") as file:
        post: NodePost = pickle.load(file)
    Path(sys.argv[1]).unlink()  # it holds secrets
    job = post.assignment.job
    if post.job == "ps":
        serve("ps", post.number, ceil(job.cores), post.address).join()
    elif post.job == "chief":
        coordinate(post)
    elif job.mode == "sync":
        work_together(post)
    else:
        work_alone(post)


def _end_with_the_launcher() -> None:
    os.read(0, 1)
    os._exit(1)


def coordinate(post: NodePost) -> None:
    """Lead asynchronous or model-parallel training."""
    from trainoff.engines.tf_cluster.coordinator import lead, prepare_tensorflow

    prepare_tensorflow(post.assignment.job.cores)
    fetch(post)
    lead(post.assignment, set_up if post.assignment.job.params["feed"] == "spark" else None)


def work_together(post: NodePost) -> None:
    """Train with all other workers, then answer questions."""
    from trainoff.engines.tf_cluster.coordinator import prepare_tensorflow

    job = post.assignment.job
    tf, tap = prepare_tensorflow(job.cores), tap_of(post)
    if job.params["feed"] == "spark":
        learn_together(tf, post.assignment, post.number, tap)
    else:
        from trainoff.engines.tf_cluster.allreduce_worker import learn

        learn(tf, post.assignment, post.number, lambda: fetch(post))
    serve_questions(tf, post, tap)


def work_alone(post: NodePost) -> None:
    """Serve the coordinator, lay ready the rows that are pushed, and answer questions."""
    from trainoff.engines.tf_cluster.coordinator import prepare_tensorflow

    job = post.assignment.job
    tf, tap = prepare_tensorflow(job.cores), tap_of(post)
    fetch(post)
    spool = BatchSpool(job) if job.params["feed"] == "spark" else None
    _server = serve("worker", post.number, ceil(job.cores), post.address)  # it ends with its last name
    serve_questions(tf, post, tap, spool)


def serve_questions(tf: Any, post: NodePost, tap: Tap, spool: Any = None) -> None:
    """Answer whatever is asked through the feed, and lay ready the rows that come between, until the end."""
    from trainoff.engines.tf_on_spark.feed import PredictRequest, answer

    labels: Any = None
    while (item := tap.take()) is not None:
        if isinstance(item, PredictRequest):
            labels = answer(tf, post.assignment.job.model, item, tap, labels)
        else:
            for block in item:
                spool.lay(*block)


def fetch(post: NodePost) -> None:
    """Read the rows, where they lie in a store."""
    if post.storage:
        place: Any = post.assignment.job.data.x_train
        post.storage.fetch(Path(place.path).parent)


def tap_of(post: NodePost) -> Tap:
    """Where the process takes what Spark pushes to it."""
    from trainoff.engines.tf_on_spark.feed import Tap

    assert post.queues
    return Tap(*post.queues)


FOLDER = Path("fed")  # of a worker, in the folder of its executor
LAID, TAKEN = FOLDER / "laid", FOLDER / "taken"  # how many batches
MOST_LAID = 32  # batches that lie ready
POLL_S = 0.005
ASK_S = 0.02  # a question to another machine costs more

Tensor = Any


class FedNetwork(MirroredNetwork):
    """A network whose workers bring as many rows to a step as they have: a gradient counts by its rows."""

    def __init__(self, tf: Any, job: Job, together: AllReduceTraining) -> None:
        self._rows = tf.Variable(0.0)
        super().__init__(tf, job, together)

    def _sizes(self, job: Job) -> dict[int, int]:
        return {0: 0}  # one step for all sizes

    def _compile(self, job: Job, size: int) -> Callable[..., float]:
        tf = self._tf
        signature = [tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([3])]
        compiled = tf.function(self._step, signature, autograph=False).get_concrete_function()
        return lambda *inputs: float(compiled(*map(tf.convert_to_tensor, inputs)))

    def learn_from(self, step: int, block: Block, rate: float) -> float:
        """Make one step on these rows and those of the others; returns the loss before it."""
        x, y = block
        rows = len(y)
        if not rows:  # the others still need this worker's part, even if it is nothing
            x, y = np.zeros((1, x.shape[1]), np.float32), np.zeros(1, np.int64)
        numbers = np.array([*step_numbers(self._optimizer, rate, step), rows], np.float32)
        return self._steps[0](x, y, numbers)

    @property
    def rows(self) -> int:
        """How many rows all workers together brought to the last step."""
        return int(self._rows)

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, gradient = differentiate(self._tf, self._model, self.weights, x, y)
        mine = numbers[2]
        rows, *sums = self._together.sum([mine, *(mine * part for part in (loss, *gradient))])
        self._rows.assign(rows)
        loss, *gradient = (self._tf.math.divide_no_nan(part, rows) for part in sums)
        return loss, gradient


def learn_together(tf: Any, assignment: PsAssignment, number: int, tap: Tap) -> None:
    """Be one of the workers, from the first word to the last step."""
    together, leader = join(tf, assignment, number)
    job = assignment.job
    if leader:
        leader.report_state("shipped")
    learner = FedNetwork(tf, job, together)
    learner.learn_from(1, nothing(job), 0.0)  # for TensorFlow to compile
    times, samples, batches = np.zeros((job.order.steps, 3)), 0, tap.batches()
    together.tell_all(times)  # the same, of what is told at the end
    if leader:
        leader.wait_for_start()
    for step in range(1, job.order.steps + 1):
        start = time.monotonic()
        block = next(batches)
        fed = time.monotonic()
        loss = learner.learn_from(step, block, float(job.rates[step - 1]))
        times[step - 1] = time.monotonic() - fed, together.took, fed - start
        samples += learner.rows
        if leader:
            leader.progress(step, loss, lambda: [part.numpy() for part in learner.weights], samples)
    end(together, leader, times)


def width(job: Job) -> int:
    """How many numbers a row has."""
    found: int = job.data.x_train.shape[1]
    return found


def nothing(job: Job) -> Block:
    """No rows."""
    return np.zeros((0, width(job)), np.float32), np.zeros(0, np.int64)


class BatchSpool:
    """Where a worker of asynchronous training lays its batches ready: files, which TensorFlow's graph reads.

    The graph is run by the coordinator, from another machine; it can reach no queue of this process.
    """

    def __init__(self, job: Job) -> None:
        shutil.rmtree(FOLDER, ignore_errors=True)  # of a cluster before this one
        FOLDER.mkdir()
        TAKEN.write_text("0")
        self._laid = self._gone = -1
        self.lay(np.zeros((1, width(job)), np.float32), np.zeros(1, np.int64))  # number 0, to practise with

    def lay(self, x: Any, y: Any) -> None:
        """Add a batch, as soon as there is room."""
        while self._laid - self._taken() >= MOST_LAID:
            time.sleep(POLL_S)
        self._laid += 1
        np.ascontiguousarray(x).tofile(FOLDER / f"{self._laid}.x")
        np.ascontiguousarray(y).tofile(FOLDER / f"{self._laid}.y")
        atomic_write(LAID, str(self._laid))

    def _taken(self) -> int:
        """How many were taken; those are removed."""
        with suppress(ValueError):  # it is being written
            taken = int(TAKEN.read_text())
            while self._gone < taken - 1:
                self._gone += 1
                for kind in ("x", "y"):
                    (FOLDER / f"{self._gone}.{kind}").unlink()
        return self._gone + 1


class FedDense(DenseGradients):
    """A worker's part of the graph, with rows from its spool."""

    def __init__(self, tf: Any, job: Job, store: PackedParameters, number: int) -> None:
        self._tf, self._model, self._store = tf, job.model, store
        self._width = width(job)
        self._kept = []

    def take(self, rows: Tensor) -> list[Tensor]:
        """The batch of that number."""
        tf = self._tf
        number = tf.strings.as_string(rows[0])
        name = tf.strings.join([f"{FOLDER}/", number])
        x = tf.io.decode_raw(tf.io.read_file(tf.strings.join([name, ".x"])), tf.float32)
        y = tf.io.decode_raw(tf.io.read_file(tf.strings.join([name, ".y"])), tf.int64)
        with tf.control_dependencies([x, y]):
            tf.io.write_file(str(TAKEN), number)
        return [tf.reshape(x, [-1, self._width]), y]


class Laid(Numbered):
    """Rows that lie in the larders: a worker is told the number of its next batch there, once it is there."""

    shared = False

    def __init__(self, tf: Any, workers: int) -> None:
        self._asks = [self._compile(tf, number) for number in range(workers)]
        self._known, self._next = [0] * workers, [1] * workers

    def _compile(self, tf: Any, number: int) -> Any:
        def laid(name: Tensor) -> Tensor:  # a name that is known beforehand would be read once and for all
            with tf.device(worker(number)):
                return tf.strings.to_number(tf.io.read_file(name), tf.int64)

        found = tf.function(laid, [tf.TensorSpec([], tf.string)], autograph=False).get_concrete_function()
        return lambda: int(found(tf.constant(str(LAID))))

    def first(self) -> Any:
        return np.zeros(1, np.int32)

    def ready(self, worker: int, over: Callable[[], bool]) -> bool:
        while self._known[worker] < self._next[worker]:
            if over():
                return False
            self._known[worker] = self._asks[worker]()
            if self._known[worker] < self._next[worker]:
                time.sleep(ASK_S)
        return True

    def next(self, worker: int, batch: int) -> Any:
        self._next[worker] += 1
        return np.array([self._next[worker] - 1], np.int32)


def set_up(tf: Any, assignment: PsAssignment, leader: ControlClient) -> tuple[Any, Any]:
    """The variables on the servers, and asynchronous training from the larders of the workers."""
    job = assignment.job
    store = PackedParameters(tf, job, len(assignment.addresses["ps"]))
    context = PsContext(tf, job, store, leader, assignment.checkpoints)
    learners = [FedDense(tf, job, store, number) for number in range(job.workers)]
    return context, Asynchronous(context, learners, Laid(tf, job.workers))


if __name__ == "__main__":
    main()
