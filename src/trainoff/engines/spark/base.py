"""What every engine on Spark does alike: say what is missing, start the cluster, connect, let go."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Protocol

from trainoff.clusters.spark import Executors, allocate
from trainoff.engines.contract import Engine, Job, Missing, Watch
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainoff.engines.spark.session import Session
    from trainoff.study import Trial


class SparkEngine(Engine):
    """An engine on a Spark cluster. `open` of a subclass goes on once `self.session` is connected."""

    package = "pyspark"
    extra = "spark"
    cluster = "spark"
    trainer = "CoarseGrainedExecutorBackend"
    modules: ClassVar[tuple[str, ...]] = ("pyspark", "pyarrow", "pandas")
    on_executors: ClassVar[tuple[str, ...]] = ("numpy",)  # what the Python of the executors must have
    whole_executors: ClassVar[bool] = True  # one task takes an executor with all its cores; else one core each
    properties: ClassVar[Mapping[str, str]] = {}  # Spark's, besides those that all engines set
    session: Session | None = None

    def missing(self) -> list[Missing]:
        from trainoff.clusters.java import INSTALL, LEAST, find_java

        absent = super().missing()
        java = find_java()
        if java is None:
            absent.append(Missing(f"Java {LEAST} or later", INSTALL))
        elif java.lacks:
            absent.append(Missing(f"another Java ({java.lacks})", INSTALL))
        return absent

    def others(self, job: Job) -> int:
        """How many executors there are besides the workers'."""
        return 0

    def refuses(self, trial: Trial) -> str | None:
        if refused := refuses_executors(trial):
            return refused
        if trial.params["batch_size"] < (workers := fit(trial).count):
            return f"a batch of {trial.params['batch_size']} rows cannot be shared by {workers} workers"
        return self.refuses_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.clusters.java import sharing
            from trainoff.engines.spark.session import Session
        watch.note("classes", "shared by the JVMs" if sharing() else "read from the jars by every JVM")
        with watch.phase("cluster_start"):
            self.session = Session(job, self.whole_executors, self.properties, self.others(job))
            self.session.start()
            if self.session.attached:
                from trainoff.engines.spark.session import examine

                watch.note("executors", examine(self.session, self.on_executors))

    def close(self) -> None:
        if self.session:
            self.session.stop()


def refuses_executors(trial: Trial) -> str | None:
    """Why the workers cannot hold the executors that the trial asks for, or None."""
    if trial.params.get("executor_cores") and not trial.memory_gb:
        return "executor_cores divides the nodes' memory, too: say with memory_gb how much each has"
    try:
        fit(trial)
    except TrainoffError as error:
        return str(error)
    return None


HEAP_SHARE = 0.5  # of a worker's memory; the rest is for its Python, for Spark's worker and outside the heap
HEAP_GB, LEAST_HEAP_GB = 2.0, 0.5


class Asks(Protocol):
    """What decides about the executors; a trial and a job both have it."""

    @property
    def workers(self) -> int: ...
    @property
    def cores(self) -> float: ...
    @property
    def memory_gb(self) -> float | None: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


def fit(asks: Asks) -> Executors:
    """One executor per worker, with all its cores; or, given `executor_cores`, as many as the workers' nodes hold."""
    cores, memory = ceil(asks.cores), asks.memory_gb
    if executor_cores := asks.params.get("executor_cores"):
        return allocate(asks.workers, cores, memory or 0.0, executor_cores)
    return Executors(asks.workers, cores, max(LEAST_HEAP_GB, memory * HEAP_SHARE) if memory else HEAP_GB)
