"""tf-on-spark: TensorFlow on the executors of a Spark cluster, by Yahoo's tensorflowonspark.

cluster  the TensorFlow cluster on the executors: membership, and what starts and watches each process there
node     the TensorFlow process on an executor, and training on rows that Spark pushes
feed     rows and requests that Spark sends to the TensorFlow processes
compat   Yahoo's package, with the parts replaced that do not work
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Job, Knob, Refused, Watch, families, refuse_stop
from trainoff.engines.shared.control_channel import ControlServer, wait_until_ready
from trainoff.engines.shared.recovery import CheckpointWriter
from trainoff.engines.shared.shipping import InFile, compact, unpack_rows, without_rows
from trainoff.engines.shared.storage import Storage, needs_host_network, refuses_storage, rows_name
from trainoff.engines.spark import ROWS, SparkEngine
from trainoff.engines.tensorflow import TensorFlow
from trainoff.engines.tf_cluster import ASYNC_DIFFERS, KNOB_MODES, TfPs, refuses_split
from trainoff.engines.tf_cluster.coordinator import TfAssignment
from trainoff.engines.tf_on_spark.cluster import TfOnSparkCluster
from trainoff.engines.tf_on_spark.feed import BLOCK_ROWS, PushTask, apportion, blocks, push, request_predictions
from trainoff.models import flatten

if TYPE_CHECKING:
    from trainoff.data import Matrix
    from trainoff.engines.spark.session import SparkConnection
    from trainoff.study import Trial

ALSO = ("tensorflow", "tensorflowonspark", "pkg_resources")


class TfOnSpark(SparkEngine):
    """TensorFlow's processes run on Spark's executors; Spark pushes the rows, or TensorFlow reads them."""

    name = "tf-on-spark"
    about = "TensorFlowOnSpark: TensorFlow on Spark's executors, rows pushed by Spark or read by TensorFlow"
    models = families("Network")
    modes = ("sync", "async", "model-parallel")
    package = "tensorflowonspark"
    extra = "tf-on-spark"
    modules = (*SparkEngine.modules, *ALSO)
    on_executors = ("trainoff", "numpy", *ALSO)  # in processes that Spark sends no modules to
    knobs: ClassVar[Mapping[str, Knob]] = {
        "feed": Knob(
            str,
            "tensorflow",
            "how TensorFlow gets the rows: Spark pushes to each process its own, or every process reads all of them",
            choices=("tensorflow", "spark"),
        ),
        "storage": Knob(
            str,
            None,
            "where TensorFlow or Spark reads the rows: a folder at file://, s3://, gs://, hdfs:// or another fsspec "
            "address; written there first if they are missing. By default Spark sends them from the driver",
        ),
        "format": Knob(str, "parquet", "the files in storage", choices=("parquet", "tfrecord")),
        "tensorboard": Knob(bool, False, "whether to write event files and show them in a TensorBoard while it trains"),
        "block_rows": Knob(int, 1000, 'feed = "spark": how many rows are pushed at a time, at least', minimum=1),
        **{name: TfPs.knobs[name] for name in ("ps", "max_staleness", "staleness_aware")},
    }
    properties: ClassVar[Mapping[str, str]] = {
        "spark.task.maxFailures": "1",  # a TensorFlow cluster does not survive the loss of a member
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.locality.wait": "0s",  # all partitions are pushed at once, from their own executors if possible
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """Reset the knobs of other modes and feeds to their defaults."""
        idle = {name for name in self.knobs if KNOB_MODES.get(name, values["mode"]) != values["mode"]}
        if values["mode"] == "sync":
            idle.add("ps")
        if values["feed"] != "spark":
            idle.add("block_rows")
        if not values["storage"]:
            idle.add("format")
        return {**values, **{name: self.knobs[name].default for name in idle}}

    def version(self) -> str:
        return f"{super().version()}+tf{TensorFlow().version()}"

    def refuses(self, trial: Trial) -> str | None:
        if refused := refuse_stop(trial):
            return refused
        if trial.params["tensorboard"] and trial.attached:
            return "tensorflowonspark's TensorBoard cannot be reached from other machines; leave `tensorboard` out"
        if refused := refuses_storage(trial.params["storage"]):
            return refused
        if trial.params.get("executor_cores"):
            return "every TensorFlow worker needs its own executor; leave `executor_cores` out"
        if trial.mode == "model-parallel":
            if trial.params["feed"] == "spark":
                return 'in model-parallel mode only the first worker needs rows; use feed = "tensorflow"'
            if refused := refuses_split(trial):
                return refused
        return super().refuses(trial)

    def outside(self, trial: Trial) -> str | None:
        return needs_host_network(trial.params["storage"])

    def differs(self, trial: Trial) -> str | None:
        if trial.params["feed"] == "spark":
            return "Spark pushes the rows in the order of its partitions, so batches are made of other rows"
        if trial.mode == "async" and trial.workers > 1:
            return ASYNC_DIFFERS
        return None

    def others(self, job: Job) -> int:
        """Every parameter server has its own executor, and so has the coordinator."""
        return 0 if job.mode == "sync" else int(job.params["ps"]) + 1

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        self._pushing: Future[Any] | None = None
        self._idle = False  # whether nothing has failed, and no job runs on the executors
        self._thread = ThreadPoolExecutor(1)
        with watch.phase("ship"), self.session.failures():
            url, self._storage = job.params["storage"], None
            if url:
                self._storage = Storage(url, job.params["format"], rows_name(job.data))
                self._storage.put(job.data.x_train, job.data.y_train)
            elif job.params["feed"] == "tensorflow":
                self.session.send_rows(job, write_rows)
        self._form_cluster(job, watch)
        if job.params["feed"] == "spark":
            # Not before parameter servers have taken their executors: the rows must be where they are needed.
            with watch.phase("ship"), self.session.failures():
                self._rows, self._sizes = distribute(self.session, job, self._storage)
            self._batches = self._batches_per_epoch(job)
        self._idle = True

    def _batches_per_epoch(self, job: Job) -> list[int]:
        """Return into how many batches each partition is split: one per step, or its share of the steps."""
        steps = job.order.steps_per_epoch
        counts = [steps] * len(self._sizes) if job.mode == "sync" else apportion(steps, self._sizes)
        if any(size and not count for size, count in zip(self._sizes, counts, strict=True)):
            raise Refused(
                f"the {steps} steps of an epoch cannot be shared by {job.workers} workers with separate rows; "
                "take a smaller batch_size or fewer workers"
            )
        return counts

    def _form_cluster(self, job: Job, watch: Watch) -> None:
        """Form the TensorFlow cluster, and wait until it can train."""
        with watch.phase("cluster_start"):
            self._cluster = TfOnSparkCluster(self.session, 0 if job.mode == "sync" else job.params["ps"])
            self._control = ControlServer(self._cluster.host, self._check)
            reads = None if job.params["feed"] == "spark" else self._storage
            self._cluster.start(self._assignment(job, watch), reads)
            if job.params["tensorboard"]:
                watch.page("tensorboard", *self._cluster.tensorboard)
        wait_until_ready(watch, self._control.wait_for)

    def _assignment(self, job: Job, watch: Watch) -> TfAssignment:
        checkpoints, schedule = CheckpointWriter(Path("checkpoint.npz"), 0), watch.snapshot_schedule
        events = str(job.folder / "tensorboard") if job.params["tensorboard"] else None
        return TfAssignment(with_local_rows(job), schedule, self._control.endpoint, {}, checkpoints, events)

    def _check(self) -> None:
        """Raise the error of a process or job on the executors that has failed."""
        self._cluster.check()
        if self._pushing and self._pushing.done():
            with self.session.failures():
                self._pushing.result()

    def train(self, job: Job, watch: Watch) -> None:
        self._idle = False
        if job.params["feed"] == "spark":
            self._pushing = self._thread.submit(self._push, job)
        weights, report = self._control.follow(job, watch)
        self._weights = flatten(weights)
        for name, value in report["counts"].items():
            watch.count(name, value)
        if self._pushing:
            pushed: list[tuple[int, float]] = self._pushing.result()
            watch.count("fed_bytes", sum(size for size, _ in pushed))
            watch.count("push_s", sum(seconds for _, seconds in pushed))
            how = "into one batch for every step" if job.mode == "sync" else "into its share of the steps"
            watch.note(
                "feed",
                f"partitions of {', '.join(map(str, self._sizes))} rows, each cut {how} of an epoch; "
                "a worker's gradient counts by its rows",
            )
        self.session.report(watch)
        self._idle = True

    def _push(self, job: Job) -> list[tuple[int, float]]:
        """Have Spark push every epoch; returns the bytes and seconds of every partition."""
        order, width = job.order, job.data.x_train.shape[1]
        access, block_rows = self._cluster.access, job.params["block_rows"]
        results: list[tuple[int, float]] = []
        for epoch in range(order.epochs):
            task = PushTask(access, epoch, order.seed, self._sizes, self._batches, block_rows, width)
            results += self._rows.barrier().mapPartitionsWithIndex(partial(push, task)).collect()
        return results

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        context = self.session.context
        self._idle = False
        weights = context.broadcast(self._weights)
        parts = [np.asarray(x[first : first + BLOCK_ROWS]) for first in range(0, len(x), BLOCK_ROWS)]
        rdd = context.parallelize(parts, self.session.job.workers)
        work = partial(request_predictions, self._cluster.access, weights)
        labels = self._cluster.map_partitions(work, rdd)
        weights.destroy()
        self._idle = True
        return np.concatenate(labels)

    def close(self) -> None:
        try:
            if hasattr(self, "_control"):
                self._control.close()
            if hasattr(self, "_cluster"):
                self._cluster.end(idle=self._idle)
        finally:
            super().close()


def with_local_rows(job: Job) -> Job:
    """Return the job for TensorFlow's processes, with the rows as files in the folder of their executor."""
    files: dict[str, Any] = {
        name: InFile(f"{ROWS}/{name}", 0, rows.shape, rows.dtype.str)
        for name, rows in (("x_train", job.data.x_train), ("y_train", job.data.y_train))
    }
    lean = without_rows(job)
    return replace(lean, data=replace(lean.data, **files))


def write_rows(sent: Any) -> None:
    """Write the rows into the executor's folder. Run by Spark."""
    folder, data = Path(ROWS), unpack_rows(sent.value).data
    folder.mkdir(exist_ok=True)
    data.x_train.tofile(folder / "x_train")
    data.y_train.tofile(folder / "y_train")


def distribute(session: SparkConnection, job: Job, storage: Storage | None) -> tuple[Any, list[int]]:
    """Distribute the rows as a persistent RDD with a partition per worker; returns it with the partitions' sizes."""
    if storage:
        shares = storage.shares(len(job.data.y_train), job.workers)
        rows = session.context.parallelize(shares, job.workers).mapPartitions(partial(_read, storage))
    else:
        parts = blocks(compact(job.data.x_train), job.data.y_train, job.workers)
        rows = session.context.parallelize(parts, job.workers)
    rows = rows.persist()
    return rows, rows.barrier().mapPartitions(lambda part: [sum(len(y) for _, y in part)]).collect()


def _read(storage: Storage, shares: Iterator[Any]) -> Iterator[Any]:
    """Read the rows of a worker's share, in blocks. Run by Spark."""
    for part, first, last in chain.from_iterable(shares):
        x, y = storage.read(part)
        yield from blocks(x[first:last], y[first:last], 1)
