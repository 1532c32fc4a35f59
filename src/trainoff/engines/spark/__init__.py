"""The engines on Spark: spark-average, spark-sklearn and spark-torch, and what all engines on Spark share.

MLlib is in `mllib`, the connection to a cluster in `session`, the workers of local SGD in `worker_pool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters.java import INSTALL, LEAST, find_java, sharing
from trainoff.clusters.spark import Executors, allocate
from trainoff.engines.contract import Engine, Job, Missing, Watch, refuse_sparse_l2
from trainoff.engines.shared.control_channel import ControlServer
from trainoff.engines.shared.local_sgd import LocalSgdEngine, SklearnLocalSgdEngine, training_part
from trainoff.engines.shared.shipping import unpack_rows, without_rows
from trainoff.engines.torch.ddp_driver import DdpDriver
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from trainoff.engines.spark.session import SparkConnection
    from trainoff.study import Trial


class SparkEngine(Engine):
    """An engine on a Spark cluster. `open` connects `self.session`; a subclass does the rest."""

    package = "pyspark"
    extra = "spark"
    cluster = "spark"
    trainer = "CoarseGrainedExecutorBackend"
    modules: ClassVar[tuple[str, ...]] = ("pyspark", "pyarrow", "pandas")
    on_executors: ClassVar[tuple[str, ...]] = ("numpy",)  # what the Python of the executors must have
    whole_executors: ClassVar[bool] = True  # one task takes an executor with all its cores; else one core each
    properties: ClassVar[Mapping[str, str]] = {}  # Spark's, besides those of all engines
    session: SparkConnection

    def missing(self) -> list[Missing]:
        absent = super().missing()
        java = find_java()
        if java is None:
            absent.append(Missing(f"Java {LEAST} or later", INSTALL))
        elif java.lacks:
            absent.append(Missing(f"another Java ({java.lacks})", INSTALL))
        return absent

    def others(self, job: Job) -> int:
        """Return the number of executors besides the workers'."""
        return 0

    def refuses(self, trial: Trial) -> str | None:
        if refused := refuses_executors(trial):
            return refused
        if trial.params["batch_size"] < (workers := fit_executors(trial).count):
            return f"a batch of {trial.params['batch_size']} rows cannot be shared by {workers} workers"
        return refuse_sparse_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.engines.spark.session import SparkConnection, check_executors
        watch.note("classes", "shared by the JVMs" if sharing() else "read from the jars by every JVM")
        with watch.phase("cluster_start"):
            self.session = SparkConnection(job, self.whole_executors, self.properties, self.others(job))
            self.session.start()
            if self.session.attached:
                watch.note("executors", check_executors(self.session, self.on_executors))

    def close(self) -> None:
        if hasattr(self, "session"):
            self.session.stop()


def refuses_executors(trial: Trial) -> str | None:
    """Return why the workers' nodes cannot hold the executors that the trial asks for, or None."""
    if trial.params.get("executor_cores") and not trial.memory_gb:
        return "executor_cores divides the nodes' memory, too: set memory_gb to what each node has"
    try:
        fit_executors(trial)
    except TrainoffError as error:
        return str(error)
    return None


HEAP_SHARE = 0.5  # of a worker's memory; the rest is for its Python, for Spark's worker and outside the heap
HEAP_GB, MIN_HEAP_GB = 2.0, 0.5


def fit_executors(trial: Trial | Job) -> Executors:
    """Return one executor per worker with all its cores; or, given `executor_cores`, as many as the nodes hold."""
    cores, memory = ceil(trial.cores), trial.memory_gb
    if executor_cores := trial.params.get("executor_cores"):
        return allocate(trial.workers, cores, memory or 0.0, executor_cores)
    return Executors(trial.workers, cores, max(MIN_HEAP_GB, memory * HEAP_SHARE) if memory else HEAP_GB)


class SparkLocalSgdEngine(LocalSgdEngine, SparkEngine):
    """Local SGD with a worker on every executor; the driver averages the weights."""

    def size(self, trial: Trial) -> int:
        return fit_executors(trial).count

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.spark.worker_pool import SparkWorkerPool

        if job.mode == "search":  # a task sees the samples of a candidate; else those of a round
            self.session.rows_per_task = training_part(job).order.rows * job.order.epochs
        else:
            self.session.rows_per_task = job.params["tau"] * job.order.batch_size // self.session.executors
        with watch.phase("ship"), self.session.failures():
            self.pool = SparkWorkerPool(self.session, job, self.make_learner)


class SparkAverage(SparkLocalSgdEngine):
    """Plain numpy on every executor."""

    name = "spark-average"
    about = "SparkNet: tau local steps in numpy on every executor, then an average"


class SparkSklearn(SklearnLocalSgdEngine, SparkLocalSgdEngine):
    """MLPClassifier and SGDClassifier on every executor."""

    name = "spark-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every executor, weights averaged"
    modules = (*SparkLocalSgdEngine.modules, "sklearn")
    on_executors = ("numpy", "sklearn")


ROWS = "trainoff-rows"  # in the folder of an executor


class SparkTorch(DdpDriver, SparkEngine):
    """Spark starts the workers of the process group, one on each executor."""

    name = "spark-torch"
    about = "PyTorch on the executors by Spark's TorchDistributor, gradients summed over gloo"
    modules = (*SparkEngine.modules, "torch")
    on_executors = ("trainoff", "numpy", "torch", "pandas", "pyarrow")  # in processes that Spark sends no modules to
    properties: ClassVar[Mapping[str, str]] = {
        "spark.task.maxFailures": "1",  # a process group does not survive the loss of a member
        "spark.stage.maxConsecutiveAttempts": "1",
    }

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        with watch.phase("import"):
            from trainoff.engines.torch import network  # noqa: F401  # imports torch, for predict
        self._thread, self._workers = ThreadPoolExecutor(1), self.session.executors
        with watch.phase("ship"), self.session.failures():
            self.session.send_rows(job, write_rows_here)
        with watch.phase("compile"):
            self._running: Future[Any] | None = None
            self.server = ControlServer(self.session.context.getConf().get("spark.driver.host"), self._check)
            self._running = self._thread.submit(self._run_workers, job, watch)
            self.server.wait_for("ready")

    def _run_workers(self, job: Job, watch: Watch) -> None:
        """Run the training on the executors, to its end."""
        from pyspark.ml.torch.distributor import TorchDistributor

        from trainoff.engines.torch.ddp_worker import train_on_spark

        self.session.sql  # noqa: B018  # TorchDistributor needs the session
        lean = replace(without_rows(job), cores=self.session.cores)
        distributor = TorchDistributor(num_processes=self._workers, local_mode=False, use_gpu=False)
        distributor.run(train_on_spark, self.server.endpoint, lean, watch.snapshot_schedule, ROWS)

    def _check(self) -> None:
        """Raise the error of the training on the executors, if it failed."""
        if self._running and self._running.done():
            with self.session.failures():
                self._running.result()

    def train(self, job: Job, watch: Watch) -> None:
        self.follow(job, watch, self._workers)
        self.session.report(watch)


def write_rows_here(sent: Any) -> None:
    """Write the rows into the executor's folder, for torch's processes. Run by Spark."""
    from trainoff.engines.torch.ddp_worker import write_rows

    write_rows(unpack_rows(sent.value), Path(ROWS))
