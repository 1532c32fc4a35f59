"""A TensorFlow cluster on the executors, from the driver's side."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.managers import RemoteError
from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import WorkerFailed
from trainoff.engines.tf_cluster.coordinator import Assignment
from trainoff.engines.tf_on_spark.compat import Access, end_manager, mend, run_on_executors
from trainoff.engines.tf_on_spark.roll import Roll
from trainoff.engines.tf_on_spark.steward import Orders, steward

if TYPE_CHECKING:
    from trainoff.engines.shared.storage import Storage
    from trainoff.engines.spark.session import Session

FORM_S = 300  # how long the executors may take to find each other
EXPLAIN_S = 10.0  # how long it may take until it is known why a process is gone
POLL_S = 0.05


class Gathering:
    """TensorFlow processes on all executors of a Spark application, which know each other.

    `servers` is how many of them are parameter servers; with any, one more executor is the coordinator's.
    """

    def __init__(self, session: Session, servers: int) -> None:
        self._session, self._servers = session, servers
        self._others = servers + 1 if servers else 0  # executors that are not workers
        self.host: str = session.context.getConf().get("spark.driver.host")
        self._secret = secrets.token_bytes(32)
        self._roll = Roll(self.host)
        self._aside = ThreadPoolExecutor(1)
        self._package: Any = None
        self._nodes: Any = None

    def start(self, assignment: Assignment, storage: Storage | None = None) -> None:
        """Have tensorflowonspark form the cluster; returns when all have found each other.

        From `storage`, if it is given, every process reads the rows by itself.
        """
        self._package = package = mend(self.host, self._secret)
        run_on_executors(package, self.host, self._secret)
        package.TFCluster.tf_status.clear()  # of the cluster before, if there was one
        orders = Orders(assignment, self._roll.number, self._servers, storage)
        try:
            self._cluster = package.TFCluster.run(
                self._session.context,
                steward,
                {"orders": orders},
                self._session.executors,
                self._others,
                tensorboard=assignment.events is not None,
                log_dir=assignment.events,
                input_mode=package.TFCluster.InputMode.SPARK,  # so that Spark's tasks end, and others find room
                reservation_timeout=FORM_S,
                release_port=False,  # the stewards hold the ports until the end
            )
        except SystemExit:  # its way to say that a task has failed
            raise self._why() from None
        self._nodes = self._cluster.cluster_info

    def _why(self) -> Exception:
        return self._session.explain(self._package.TFCluster.tf_status.get("error", "tensorflowonspark gave up"))

    @property
    def access(self) -> Access:
        """What Spark's tasks need to reach the processes."""
        return Access(self._nodes, self.host, self._secret)

    @property
    def tensorboard(self) -> tuple[str, int]:
        """The host and port of TensorBoard."""
        (node,) = (each for each in self._nodes if each["tb_port"])
        return node["host"], node["tb_port"]

    def check(self) -> None:
        """Raise if a TensorFlow process has ended, and say why."""
        self._roll.check()
        if self._package and self._package.TFCluster.tf_status:
            raise self._why()
        if role := self._roll.lost:
            raise self._gone(role)

    def _gone(self, role: str) -> Exception:
        """Why nothing is heard of a process any more, as soon as somebody knows."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            self._roll.check()
            if why := self._session.lost():
                return why
            time.sleep(POLL_S)
        return WorkerFailed(role, "the process that watched over TensorFlow was killed")

    def each(self, work: Callable[[Iterator[Any]], Iterator[Any]], rdd: Any) -> Any:
        """What the executors find for an RDD, in the order of its rows; watches the processes meanwhile."""
        asked = self._aside.submit(rdd.mapPartitions(work).collect)
        while not asked.done():
            self.check()
            time.sleep(POLL_S)
        with self._session.failures():
            return asked.result()

    def end(self, politely: bool = True) -> None:
        """End all processes, and the package's managers with them: another cluster can be formed then.

        After a failure Spark may have no room for that; then it is left to the end of the application, which ends
        whatever its executors have started.
        """
        self._roll.close()
        if not self._nodes or not politely:
            return
        package, executors = self._package, self._session.executors
        for node in self._nodes:
            if node["job_name"] == "ps":
                with suppress(OSError, EOFError, AuthenticationError, RemoteError):
                    package.TFManager.connect(node["addr"], node["authkey"]).get_queue("control").put(None)
        every = self._session.context.parallelize(range(executors), executors).barrier()
        self._cluster.server.stop()
        with self._session.failures():
            every.mapPartitions(partial(_end_here, self.host, self._secret, self._nodes)).collect()
        self._nodes = None


def _end_here(host: str, secret: bytes, nodes: Any, parts: Iterator[int]) -> Iterator[int]:
    """Stop the manager and TensorBoard on this executor."""
    yield from parts
    package = mend(host, secret)
    for node in nodes:
        if node["tb_pid"] and node["executor_id"] == package.util.read_executor_id():
            os.kill(node["tb_pid"], signal.SIGTERM)
    end_manager()
    package.TFManager.mgr = package.TFSparkNode.TFSparkNode.mgr = None  # it would be asked how it is
