"""The coordinator of tf-ps: it builds the graphs, has the workers run them, and reports to the driver.

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
class TfAssignment:
    """What the driver sends to a TensorFlow process: the job, with its rows in files, and the cluster."""

    job: Job
    snapshot_schedule: SnapshotSchedule
    endpoint: Endpoint
    addresses: dict[str, list[str]]  # of the workers and servers; in tf-allreduce, of the workers
    checkpoints: CheckpointWriter
    events: str | None = None  # a folder for TensorBoard's event files

    def connect(self) -> ControlClient:
        """Connect to the driver, as the chief does."""
        if self.events:
            return TensorBoardWriter(self.endpoint, self.snapshot_schedule, self.events)
        return ControlClient(self.endpoint, self.snapshot_schedule)


BuildMode = Callable[[Any, TfAssignment, ControlClient], tuple[Any, Any]]


def read_assignment(path: str) -> TfAssignment:
    """Read the assignment from the file that the driver has written."""
    with Path(path).open("rb") as file:
        assignment: TfAssignment = pickle.load(file)
    return assignment


def prepare_tensorflow(cores: float) -> Any:
    """Import TensorFlow with as many threads as the worker has cores."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from trainoff.engines.tensorflow import set_threads, without_neighbours

    with without_neighbours():
        import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    set_threads(tf, ceil(cores))
    return tf


def coordinate(assignment: TfAssignment, build: BuildMode | None = None) -> None:
    """Coordinate a training to its end, then answer predictions until the driver disconnects.

    `build` replaces `build_mode`.
    """
    from trainoff.engines.tf_cluster.ps_context import assign

    tf = prepare_tensorflow(assignment.job.cores)
    tf.config.threading.set_inter_op_parallelism_threads(len(assignment.addresses["worker"]) + 1)
    spec = tf.train.ClusterSpec(assignment.addresses)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=0)
    control = assignment.connect()
    control.report_state("connected")
    context, mode = (build or build_mode)(tf, assignment, control)
    control.report_state("shipped")
    resume = assignment.checkpoints.load()
    mode.warm_up()
    initial = [values for each in context.store.variables for values in each.initial]
    for variable, value in zip(context.state, resume.state if resume else initial, strict=True):
        assign(variable, value)
    control.wait_for_start()
    control.end(mode.train(resume))
    control.serve_requests(lambda rows: predict_labels(tf, assignment.job, context.weights(), rows))
    os._exit(0)  # a thread may wait for ever for a worker that is stuck


def build_mode(tf: Any, assignment: TfAssignment, control: ControlClient) -> tuple[Any, Any]:
    """Create the variables on the servers, load the rows on the workers, and build the mode that trains."""
    from trainoff.engines.tf_cluster.pipeline import Pipeline, plan_stages, shard_spans
    from trainoff.engines.tf_cluster.ps_context import (
        DenseWorker,
        PackedParameters,
        ParameterStore,
        PsContext,
        SparseWorker,
    )
    from trainoff.engines.tf_cluster.ps_modes import AsyncTraining, SyncTraining

    job, servers = assignment.job, len(assignment.addresses["ps"])
    if job.mode == "model-parallel":
        stages = plan_stages(job.model.layers, job.workers)
        divided = ParameterStore(tf, job, servers, shard_spans(stages))
        context = PsContext(tf, job, divided, control, assignment.checkpoints)
        return context, Pipeline(context, divided, stages)
    sparse = job.model.sparse
    store: Any = ParameterStore(tf, job, servers) if sparse else PackedParameters(tf, job, servers)
    context = PsContext(tf, job, store, control, assignment.checkpoints)
    workers = [(SparseWorker if sparse else DenseWorker)(tf, job, store, index) for index in range(job.workers)]
    mode = {"async": AsyncTraining, "sync": SyncTraining}[job.mode]
    return context, mode(context, workers)


def predict_labels(tf: Any, job: Job, weights: Any, rows: Rows) -> Any:
    """Return the class of each row by the weights, computed in this process."""
    from trainoff.engines.tensorflow import predict
    from trainoff.engines.tensorflow.network import TfLogistic, make_predictor

    if job.model.sparse:
        return predict(TfLogistic(tf, replace(job, weights=weights)).predict, rows.mapped())
    return predict(make_predictor(tf, job.model, [tf.constant(part) for part in weights]), rows.mapped())


class TensorBoardWriter(ControlClient):
    """A connection that also writes what it reports into event files: the loss and the samples seen."""

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
    coordinate(read_assignment(sys.argv[1]))
