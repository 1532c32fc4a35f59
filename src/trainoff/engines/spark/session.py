"""A connection to Spark: properties, the trial's own cluster or an existing one, failures, and data frames."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, StructField, StructType

from trainoff.clusters import THREADS, Attached
from trainoff.clusters.java import LIGHT_JVM
from trainoff.clusters.local import crowded
from trainoff.clusters.spark import Executors, SparkDriver, SparkFolder, executor_logs, start_driver, start_standalone
from trainoff.data import Csr
from trainoff.engines.contract import Job, Refused, Watch, WorkerFailed
from trainoff.engines.shared.shipping import inspect_python, pack_rows, source_archive
from trainoff.engines.spark import fit_executors
from trainoff.errors import TrainoffError

FIRST_S, NEXT_S = 90.0, 30.0  # how long the first executor may take to register, and each after it
ATTACHED_FACTOR = 2  # for a cluster that others use, too
POLL_S = 0.05
EXPLAIN_S = 5.0


class SparkConnection:
    """A Spark application with its executors. `start` returns when all of them are there.

    `others` is the number of executors besides those of the workers.
    """

    def __init__(self, job: Job, whole_executors: bool, properties: Mapping[str, str], others: int = 0) -> None:
        self.job = job
        self._spark = SparkFolder(job.folder)
        fit = fit_executors(job)
        executors = replace(fit, count=fit.count + others)
        self._others = others
        self.executors, self.cores, self.heap_mb = executors.count, executors.cores, executors.memory_mb
        self.slots = self.executors if whole_executors else self.executors * self.cores  # tasks that run at once
        self._properties = common_properties(executors, self._spark.java_options, whole_executors) | dict(properties)
        if not self.attached:
            host = job.cluster.driver_node.address
            self._properties |= own_cluster_properties(self._spark.java_options, whole_executors, host)
        self._properties |= job.params.get("spark", {})
        self.rows_per_task = 0  # of a training task, if known
        self.context: Any = None
        self._gateway: Any = None
        self._driver: SparkDriver | None = None

    @property
    def attached(self) -> bool:
        return isinstance(self.job.cluster, Attached)

    def start(self) -> None:
        """Start the cluster and the driver at the same time, then wait for the executors."""
        self._spark.configure(self._properties, secret=not self.attached)
        os.environ.update(self._spark.environment(None if self.attached else self.job.cluster.driver_node.address))
        os.environ["PYSPARK_PYTHON"] = self.job.cluster.python
        if isinstance(self.job.cluster, Attached) and (python := self.job.cluster.properties.get(PYTHON)):
            os.environ["PYSPARK_PYTHON"] = python  # pyspark does not read the property
        with ThreadPoolExecutor(1) as thread:
            driver = thread.submit(self._start_driver)
            try:
                url = self._address()
            finally:
                driver.result()
        conf = SparkConf().setMaster(url).setAppName("trainoff").set("spark.submit.deployMode", "client")
        with self.failures():
            self.context = SparkContext(gateway=self._gateway, conf=conf)
            self._wait_for_executors()

    def _start_driver(self) -> None:
        self._driver = start_driver(self.job.cluster, self._spark)
        with self._driver.address_in_environment():
            self._gateway = launch_gateway()  # type: ignore[no-untyped-call]  # pyspark has no types for it

    def _address(self) -> str:
        """Return the master's address, after starting the cluster unless it exists."""
        if isinstance(self.job.cluster, Attached):
            check_reachable(self.job.cluster.address)
            return self.job.cluster.address
        worker_mb = max(int((self.job.memory_gb or 0) * 1024), self.heap_mb)
        per_node = ceil(self.executors / len(self.job.cluster.nodes)) if self._others else 1
        return start_standalone(self.job.cluster, self._spark, ceil(self.job.cores) * per_node, worker_mb * per_node)

    def _wait_for_executors(self) -> None:
        """Wait until all are registered; if no other one registers for some time, the cluster has no room for it."""
        factor = ATTACHED_FACTOR if self.attached else crowded(1.0, self.executors)
        deadline = time.monotonic() + FIRST_S * factor
        before = 0
        while (count := self.context._jsc.sc().getExecutorMemoryStatus().size() - 1) < self.executors:
            if count > before:
                before, deadline = count, time.monotonic() + NEXT_S * factor
            if time.monotonic() > deadline:
                raise TrainoffError(
                    f"the cluster has room for {count} of {self.executors} executors of {self.cores} cores and "
                    f"{self.heap_mb} MB each; ask for fewer workers, cores or memory_gb"
                )
            time.sleep(POLL_S)

    @cached_property
    def sql(self) -> SparkSession:
        """The application's session for data frames."""
        return SparkSession(self.context)

    def run_on_each(self, work: Callable[[], Any]) -> list[Any]:
        """Run a function on every executor, on all at the same time; returns the results."""

        def run(parts: Iterator[int]) -> list[Any]:  # nested, so that executors need not import this module
            list(parts)  # Spark uses a Python process again only if it has read all that was sent to it
            return [work()]

        one_each = self.context.parallelize(range(self.executors), self.executors).barrier()
        results: list[Any] = one_each.mapPartitions(run).collect()
        return results

    def send_rows(self, job: Job, write: Callable[[Any], None]) -> None:
        """Broadcast the job with its rows, and have every executor write them."""
        sent = self.context.broadcast(pack_rows(job))
        self.run_on_each(partial(write, sent))
        sent.destroy()

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Turn Spark's error about a failed task into that task's own error."""
        try:
            yield
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        if self._driver and isinstance(error, ConnectionError | Py4JNetworkError):  # it is dying, or dead
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._driver.process.wait(EXPLAIN_S)
        if self._driver and (code := self._driver.process.exit_code) is not None:
            return WorkerFailed("driver", f"Spark's driver (its JVM) ended with code {code}")
        return self.explain(str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error))

    def explain(self, text: str) -> Exception:
        """Return the error to raise for the text of a failure."""
        return explain(text, self._log_of)

    def lost(self) -> Exception | None:
        """Return why an executor or the driver's JVM is gone; None if all are there."""
        try:
            lost = [each.id() for each in self._summaries() if not each.isActive()]
        except (Py4JError, ConnectionError) as error:
            return self._explain(error)
        if not lost:
            return None
        return WorkerFailed(f"executor-{lost[0]}", f"Spark lost executor {lost[0]}", self._log_of(lost[0]))

    def _log_of(self, executor: str) -> str:
        self.job.cluster.fetch_logs()
        logs = [log for log in executor_logs(self.job.folder) if log.parent.name == executor]
        return "\n".join(logs[-1].read_text(errors="replace").splitlines()[-50:]) if logs else ""

    def report(self, watch: Watch) -> None:
        """Report the executors' tasks, garbage collection, failures and losses."""
        executors = self._summaries()
        watch.count("gc_s", sum(each.totalGCTime() for each in executors) / 1000)
        watch.count("tasks", sum(each.totalTasks() for each in executors))
        failed = sum(each.failedTasks() for each in executors)
        lost = [each for each in executors if not each.isActive()]
        for each in lost:
            gone = each.removeTime()
            ago_s = time.time() - gone.get().getTime() / 1000 if gone.isDefined() else 0.0
            watch.lost(f"executor-{each.id()}", each.failedTasks() * self.rows_per_task, ago_s)
        if failed or lost:
            watch.count("tasks_failed", failed)
            watch.count("executors_lost", len(lost))
            watch.count("recovery_s", sum(map(partial(_seconds_until_replaced, executors), lost)))

    def _summaries(self) -> list[Any]:
        """Return Spark's summary of every executor, lost ones too."""
        summaries = self.context._jsc.sc().statusStore().executorList(False)
        every = [summaries.apply(index) for index in range(summaries.size())]
        return [each for each in every if each.id() != "driver"]

    @property
    def alive(self) -> bool:
        """Whether there is an executor. Without one Spark waits for ever."""
        return any(each.isActive() for each in self._summaries())

    def stop(self) -> None:
        """End the application and the driver's JVM; the cluster's processes are ended with the cluster."""
        if self.context:
            with contextlib.suppress(Py4JError, ConnectionError):
                self.context.stop()
        if self._gateway:
            with contextlib.suppress(Py4JError, ConnectionError):
                self._gateway.shutdown()
        if self._driver:
            self._driver.process.stop()


def _seconds_until_replaced(executors: list[Any], lost: Any) -> float:
    """Return the seconds until the next executor registered after a loss; 0 if none did."""
    gone = lost.removeTime()
    if not gone.isDefined():
        return 0.0
    later = [each.addTime().getTime() - gone.get().getTime() for each in executors if each.addTime().after(gone.get())]
    return min(later) / 1000 if later else 0.0


DRIVER_MB = 2048


def common_properties(executors: Executors, java: str, whole_executors: bool) -> dict[str, str]:
    """Return Spark's properties on every cluster; `whole_executors`: a task takes all cores of its executor."""
    return {
        "spark.driver.memory": f"{DRIVER_MB}m",
        "spark.driver.maxResultSize": "0",
        "spark.driver.extraJavaOptions": f"{java} {LIGHT_JVM}",
        "spark.executor.cores": str(executors.cores),
        "spark.executor.instances": str(executors.count),
        "spark.executor.memory": f"{executors.memory_mb}m",
        "spark.cores.max": str(executors.count * executors.cores),
        "spark.dynamicAllocation.enabled": "false",
        "spark.task.cpus": str(executors.cores if whole_executors else 1),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "1000000",  # they are counted
        # Weights do not compress, and a result that fits is sent at once instead of being asked for.
        "spark.broadcast.compress": "false",
        "spark.task.maxDirectResultSize": "64m",
        # A JVM and its own Python communicate without the network. The path is relative, because the trial's folder
        # may be too deep for the 107 characters of a socket's address.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": ".",
        # So that too few slots are reported in seconds.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
        **{f"spark.executorEnv.{name}": str(executors.cores) for name in THREADS},
    }


def own_cluster_properties(java: str, whole_executors: bool, host: str) -> dict[str, str]:
    """Return further properties on a cluster that the trial starts for itself; `host` is the driver's address."""
    return {
        "spark.master.rest.enabled": "false",  # an unused way to submit applications
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        # Where Python does the work, the compilers of the JVMs should not take its cores.
        "spark.executor.extraJavaOptions": f"{java} {LIGHT_JVM}" if whole_executors else java,
        # Else gloo resolves the machine's name, often in vain.
        **({"spark.executorEnv.GLOO_SOCKET_IFNAME": "lo"} if host == "127.0.0.1" else {}),
        "spark.python.daemon.module": "trainoff.engines.spark.daemon",
    }


PYTHON = "spark.pyspark.python"
SET_PYTHON = f'name theirs in [cluster.spark]: "{PYTHON}" = "/path/to/python"'


def explain(text: str, log_of: Callable[[str], str]) -> Exception:
    """Return the error to raise instead of Spark's; `log_of` returns the end of an executor's log by its id."""
    if "PYTHON_VERSION_MISMATCH" in text:
        return TrainoffError(f"the executors run another Python than this machine; {SET_PYTHON}")
    if "Cannot run program" in text:
        return TrainoffError(f"the executors have no Python at {os.environ['PYSPARK_PYTHON']}; {SET_PYTHON}")
    executor = re.search(r"\(\S+ executor (\d+)\)", text)
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:(?!\tat ).*\n?)*", text)
    reason = traceback[0].strip() if traceback else text.splitlines()[0]
    if not executor:  # Spark does not say where the tasks of a barrier ran
        return WorkerFailed("executor", reason) if traceback else TrainoffError(text)
    return WorkerFailed(f"executor-{executor[1]}", reason, log_of(executor[1]))


CONNECT_S = 5.0


def check_reachable(address: str) -> None:
    """Raise if no standalone master listens, because Spark itself would try for a minute. Others are not checked."""
    if not address.startswith("spark://"):
        return
    for master in address.removeprefix("spark://").split(","):
        host, _, port = master.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), CONNECT_S):
                return
        except (OSError, ValueError):
            continue
    raise TrainoffError(f"no Spark master answers at {address}; is it running, and can it be reached from here?")


def check_executors(session: SparkConnection, modules: Sequence[str]) -> str:
    """Describe the executors of an existing cluster in one sentence; raise if they cannot run the engine.

    If trainoff is not installed on them it is sent along.
    """
    inspect, count = inspect_python(modules), session.executors

    def inspect_part(parts: Iterator[int]) -> list[dict[str, Any]]:
        list(parts)
        return [inspect()]

    with session.failures():
        found = session.context.parallelize(range(count), count).mapPartitions(inspect_part).collect()
    lacking = sorted({name for each in found for name in each["lacks"] if name in modules})
    if lacking:
        raise TrainoffError(
            f"the executors' Python ({found[0]['python']}) lacks {', '.join(lacking)}; install it on every node, or "
            f'name another Python in [cluster.spark]: "{PYTHON}" = "/path/to/python"'
        )
    if any("trainoff" in each["lacks"] for each in found):
        session.context.addPyFile(source_archive(session.job.folder / "spark"))
    pythons, hosts = {each["version"] for each in found}, sorted({each["host"] for each in found})
    return (
        f"{count} executors of {session.cores} cores and {session.heap_mb} MB on {', '.join(hosts)}, "
        f"Python {', '.join(sorted(pythons))}"
    )


MAX_VALUES = 2**31 - 1
SPARSE = 0  # how Spark marks a sparse vector


def frame(session: SparkConnection, x: Any, labels: Any) -> Any:
    """Return the rows as a data frame with as many partitions as tasks run at once."""
    make = _sparse if isinstance(x, Csr) else _dense
    return make(session, x, pa.array(np.asarray(labels, np.float64))).repartition(session.slots)


def _dense(session: SparkConnection, x: Any, labels: Any) -> Any:
    rows, width = x.shape
    starts = np.arange(0, (rows + 1) * width, width)
    lists = pa.ListArray.from_arrays(_offsets(starts), pa.array(np.asarray(x).ravel()))
    rows_frame = session.sql.createDataFrame(pa.table({"label": labels, "x": lists}))
    return rows_frame.select("label", array_to_vector(rows_frame["x"]).alias("features"))


def _sparse(session: SparkConnection, x: Csr, labels: Any) -> Any:
    """Make sparse vectors as Spark stores them: structs of type, size, indices and values."""
    part = x.compact()
    starts = _offsets(part.starts)
    vectors = pa.StructArray.from_arrays(
        [
            pa.array(np.full(len(part), SPARSE, np.int8)),
            pa.array(np.full(len(part), part.width, np.int32)),
            pa.ListArray.from_arrays(starts, pa.array(np.asarray(part.columns))),
            pa.ListArray.from_arrays(starts, pa.array(np.asarray(part.values, np.float64))),
        ],
        ["type", "size", "indices", "values"],
    )
    structs = session.sql.createDataFrame(pa.table({"label": labels, "features": vectors}))
    # Only an internal function makes vectors of structs, and none makes them of Arrow's arrays.
    schema = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])
    java_schema = session.context._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    java_rows = structs._jdf.queryExecution().toRdd()
    return DataFrame(session.sql._jsparkSession.internalCreateDataFrame(java_rows, java_schema, False), session.sql)


def _offsets(starts: Any) -> Any:
    """Return the offsets of Arrow's lists."""
    if starts[-1] > MAX_VALUES:
        raise Refused(f"{starts[-1]:,} values do not fit into the columns that Spark takes; at most {MAX_VALUES:,} do")
    return pa.array(starts.astype(np.int32))
