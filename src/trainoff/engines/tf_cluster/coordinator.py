"""The coordinator of tf-ps: it builds the graphs, has the workers run them, and tells the driver how far they are.

`python -m trainoff.engines.tf_cluster.coordinator ASSIGNMENT`
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient, Endpoint
from trainoff.engines.shared.recovery import CheckpointWriter
from trainoff.engines.shared.shipping import Rows
from trainoff.engines.shared.snapshots import SnapshotSchedule


@dataclass(frozen=True)
class PsAssignment:
    """What the leading process is given by the driver: the job, its rows in files, and whom to work with."""

    job: Job
    snapshot_schedule: SnapshotSchedule
    endpoint: Endpoint
    addresses: dict[str, list[str]]  # of the workers and servers; in tf-allreduce, of the workers
    checkpoints: CheckpointWriter
    events: str | None = None  # a folder for what TensorBoard shows

    def call(self) -> ControlClient:
        """The line to the driver, for who leads."""

        return (
            TensorBoardWriter(self.endpoint, self.snapshot_schedule, self.events)
            if self.events
            else ControlClient(self.endpoint, self.snapshot_schedule)
        )


SetUp = Callable[[Any, PsAssignment, ControlClient], tuple[Any, Any]]


def read_assignment(path: str) -> PsAssignment:
    """The assignment in a file that the driver has written."""
    with Path(path).open("rb") as file:
        assignment: PsAssignment = pickle.load(file)
    return assignment


def prepare_tensorflow(cores: float) -> Any:
    """TensorFlow, with as many threads as the worker has cores."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from trainoff.engines.tensorflow import set_threads, without_neighbours

    with without_neighbours():
        import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    set_threads(tf, ceil(cores))
    return tf


def main() -> None:
    lead(read_assignment(sys.argv[1]))


def lead(assignment: PsAssignment, set_up: SetUp | None = None) -> None:
    """Lead a training to its end, then label what is asked for, until the driver hangs up.

    `set_up` stands in for the one below.
    """
    tf = prepare_tensorflow(assignment.job.cores)
    tf.config.threading.set_inter_op_parallelism_threads(len(assignment.addresses["worker"]) + 1)
    spec = tf.train.ClusterSpec(assignment.addresses)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=0)
    leader = assignment.call()
    leader.report_state("connected")
    context, mode = (set_up or set_up_mode)(tf, assignment, leader)
    leader.report_state("shipped")
    resume = assignment.checkpoints.load()
    mode.warm_up()
    put(context, resume.state if resume else context.store.initial)
    leader.wait_for_start()
    leader.end(mode.train(resume))
    leader.serve_requests(lambda rows: labels(tf, assignment.job, context.store.weights(), rows))
    os._exit(0)  # a thread may be waiting for ever for a worker that is stuck


def set_up_mode(tf: Any, assignment: PsAssignment, leader: ControlClient) -> tuple[Any, Any]:
    """The variables on the servers, the rows on the workers, and the mode that trains with them."""
    from trainoff.engines.tf_cluster.gradients import DenseGradients, SparseGradients
    from trainoff.engines.tf_cluster.pipeline import Pipeline, spans, stages
    from trainoff.engines.tf_cluster.ps_context import PackedParameters, ParameterStore, PsContext
    from trainoff.engines.tf_cluster.ps_modes import Asynchronous, Synchronous

    job, servers = assignment.job, len(assignment.addresses["ps"])
    if job.mode == "model-parallel":
        placed = stages(job.model.layers, job.workers)
        divided = ParameterStore(tf, job, servers, spans(placed))
        context = PsContext(tf, job, divided, leader, assignment.checkpoints)
        return context, Pipeline(context, divided, placed)
    sparse = job.model.kind == "logreg"
    store: Any = ParameterStore(tf, job, servers) if sparse else PackedParameters(tf, job, servers)
    context = PsContext(tf, job, store, leader, assignment.checkpoints)
    learners = [
        (SparseGradients if sparse else DenseGradients)(tf, job, store, number) for number in range(job.workers)
    ]
    mode = {"async": Asynchronous, "sync": Synchronous}[job.mode]
    return context, mode(context, learners)


def put(context: Any, state: list[Any]) -> None:
    """Give every variable on the servers its value."""
    from trainoff.engines.tf_cluster.ps_context import settle

    for variable, value in zip(context.store.state, state, strict=True):
        settle(variable, value)


def labels(tf: Any, job: Job, weights: Any, rows: Rows) -> Any:
    """The class of each row, by the weights; computed here."""
    from trainoff.engines.tensorflow import predict
    from trainoff.engines.tensorflow.network import TfLogistic, labeller

    if job.model.kind == "logreg":
        return predict(TfLogistic(tf, replace(job, weights=weights)).labels, rows.mapped())
    return predict(labeller(tf, job.model, [tf.constant(part) for part in weights]), rows.mapped())


class TensorBoardWriter(ControlClient):
    """A leader that also writes down what it tells: the loss and the samples seen, at the step."""

    def __init__(self, endpoint: Endpoint, snapshot_schedule: SnapshotSchedule, folder: str) -> None:
        import tensorflow as tf

        super().__init__(endpoint, snapshot_schedule)
        self._tf = tf
        self._writer = tf.summary.create_file_writer(folder)

    def after_report(self, step: int, loss: float | None, samples_seen: int) -> None:
        tf = self._tf
        with self._writer.as_default(step=step):
            if loss is not None:
                tf.summary.scalar("loss", loss)
            tf.summary.scalar("samples_seen", samples_seen)
        self._writer.flush()


if __name__ == "__main__":
    main()
