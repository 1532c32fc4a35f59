"""A TensorFlow cluster on the executors: the driver's side, and the task that starts and watches each process."""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from multiprocessing.managers import RemoteError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainoff
from trainoff.clusters.local import LOG_TAIL
from trainoff.engines.contract import WorkerFailed
from trainoff.engines.shared.control_channel import Endpoint
from trainoff.engines.tf_cluster.coordinator import TfAssignment
from trainoff.engines.tf_on_spark.compat import Access, end_manager, patch, run_node

if TYPE_CHECKING:
    from trainoff.engines.shared.storage import Storage
    from trainoff.engines.spark.session import SparkConnection

FORM_S = 300  # how long the executors may take to find each other
EXPLAIN_S = 10.0  # how long it may take until it is known why a process is gone
POLL_S = 0.05
PROGRAM = "trainoff.engines.tf_on_spark.node"


class TfOnSparkCluster:
    """TensorFlow processes on all executors of a Spark application.

    `servers` of them are parameter servers; if there are any, one more executor is the coordinator's.
    """

    def __init__(self, session: SparkConnection, servers: int) -> None:
        self._session, self._servers = session, servers
        self._others = servers + 1 if servers else 0  # executors that are not workers
        self.host: str = session.context.getConf().get("spark.driver.host")
        self._secret = secrets.token_bytes(32)
        self._membership = Membership(self.host)
        self._thread = ThreadPoolExecutor(1)
        self._package: Any = None
        self._nodes: Any = None

    def start(self, assignment: TfAssignment, storage: Storage | None = None) -> None:
        """Have tensorflowonspark form the cluster; returns when all processes have found each other.

        With `storage` every process reads the rows from there.
        """
        self._package = package = patch(self.host, self._secret)
        # The executors patch the package, too, before they use it.
        package.TFSparkNode.run = lambda *args, **kwargs: partial(run_node, self.host, self._secret, args, kwargs)
        package.TFCluster.tf_status.clear()  # of an earlier cluster
        config = ClusterConfig(assignment, self._membership.endpoint, self._servers, storage)
        try:
            self._cluster = package.TFCluster.run(
                self._session.context,
                launch_node,
                {"config": config},
                self._session.executors,
                self._others,
                tensorboard=assignment.events is not None,
                log_dir=assignment.events,
                input_mode=package.TFCluster.InputMode.SPARK,  # so that Spark's tasks end, and others find a slot
                reservation_timeout=FORM_S,
                release_port=False,  # the node launchers hold the ports until the end
            )
        except SystemExit:  # so it reports that a task has failed
            raise self._failure() from None
        self._nodes = self._cluster.cluster_info

    def _failure(self) -> Exception:
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
        """Raise if a TensorFlow process has ended, with the reason."""
        self._membership.check()
        if self._package and self._package.TFCluster.tf_status:
            raise self._failure()
        if role := self._membership.lost:
            raise self._explain_loss(role)

    def _explain_loss(self, role: str) -> Exception:
        """Return why the connection to a process was lost, as soon as it is known."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            self._membership.check()
            if why := self._session.lost():
                return why
            time.sleep(POLL_S)
        return WorkerFailed(role, "the process that watched over TensorFlow was killed")

    def map_partitions(self, work: Callable[[Iterator[Any]], Iterator[Any]], rdd: Any) -> Any:
        """Return what the executors make of an RDD, in its order, and check the processes meanwhile."""
        future = self._thread.submit(rdd.mapPartitions(work).collect)
        while not future.done():
            self.check()
            time.sleep(POLL_S)
        with self._session.failures():
            return future.result()

    def end(self, idle: bool = True) -> None:
        """End all processes and the package's managers, after which another cluster can be formed.

        Unless the executors are `idle`, Spark may have no slot for that: the end of the application then ends
        whatever its executors have started.
        """
        self._membership.close()
        if not self._nodes or not idle:
            return
        for node in self._nodes:
            if node["job_name"] == "ps":
                with suppress(OSError, EOFError, AuthenticationError, RemoteError):
                    self._package.TFManager.connect(node["addr"], node["authkey"]).get_queue("control").put(None)
        self._cluster.server.stop()
        with self._session.failures():
            self._session.run_on_each(partial(_end_node, self.access))
        self._nodes = None


def _end_node(access: Access) -> None:
    """Stop the manager and TensorBoard on this executor. Run by Spark."""
    package = patch(access.host, access.secret)
    for node in access.nodes:
        if node["tb_pid"] and node["executor_id"] == package.util.read_executor_id():
            os.kill(node["tb_pid"], signal.SIGTERM)
    end_manager()
    package.TFManager.mgr = package.TFSparkNode.TFSparkNode.mgr = None  # else the package would ask for its state


@dataclass(frozen=True)
class NodeEnded:
    """The exit code of a TensorFlow process, and the end of its log."""

    code: int
    log: str


class Membership:
    """The driver's connections to all node launchers, through which it notices that a process has ended or was lost."""

    def __init__(self, host: str) -> None:
        self._listener = Listener((host, 0))
        self.endpoint = Endpoint(host, self._listener.address[1], secrets.token_bytes(32))
        self._connections: dict[str, Connection] = {}
        self._failed: WorkerFailed | None = None
        self.lost: str | None = None  # the role of a process whose connection ended without an exit code
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: Connection) -> None:
        role = ""
        try:
            deliver_challenge(connection, self.endpoint.secret)
            answer_challenge(connection, self.endpoint.secret)
            role = connection.recv()
            self._connections[role] = connection
            if self._closed:
                connection.close()  # too late
            ended: NodeEnded = connection.recv()
        except (OSError, EOFError, AuthenticationError):
            if role and not self._closed:
                self.lost = self.lost or role
            return
        if not self._closed:
            text = ended.log if ended.code > 0 else f"TensorFlow's process ended with code {ended.code}"
            self._failed = self._failed or WorkerFailed(role, text, ended.log)

    def check(self) -> None:
        """Raise if a process has reported its failure."""
        if self._failed:
            raise self._failed

    def close(self) -> None:
        """Close all connections, upon which the node launchers end their processes."""
        self._closed = True
        for connection in list(self._connections.values()):
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)  # close alone does not wake up the thread that reads
        with suppress(OSError):
            listening = self._listener._listener._socket  # type: ignore[attr-defined]  # nor the one that accepts
            listening.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def register(endpoint: Endpoint, role: str) -> Connection:
    """Register a process with the driver; when the driver closes the connection, the process must end."""
    connection: Connection = Client((endpoint.host, endpoint.port), authkey=endpoint.secret)
    connection.send(role)
    return connection


@dataclass(frozen=True)
class ClusterConfig:
    """What every node of a cluster is given. The addresses of all are added on the executor."""

    assignment: TfAssignment
    membership: Endpoint
    servers: int  # how many of those that Spark calls parameter servers are; the one after them coordinates
    storage: Storage | None  # from which every process reads the rows; else they are local, or are pushed


@dataclass(frozen=True)
class NodeConfig:
    """What one TensorFlow process is given: its job and index, and where rows come from."""

    job: str
    index: int
    assignment: TfAssignment
    queues: Any  # the address and key of the manager that has them, for a worker
    storage: Storage | None

    @property
    def role(self) -> str:
        return "tf-chief" if self.job == "chief" else f"tf-{self.job}-{self.index}"

    @property
    def address(self) -> str:
        return self.assignment.addresses[self.job][self.index]


def launch_node(args: dict[str, ClusterConfig], context: Any) -> None:
    """Run this node's TensorFlow process until it ends, or until the driver does. Run by tensorflowonspark."""
    node = node_config(args["config"], context)
    connection = register(args["config"].membership, node.role)
    try:
        ended = supervise(node, connection)
    except Exception:
        ended = NodeEnded(1, traceback.format_exc())
    with suppress(OSError):
        connection.send(ended)


def node_config(config: ClusterConfig, context: Any) -> NodeConfig:
    """Return what this node is to do, from tensorflowonspark's context."""
    spec, job, index = context.cluster_spec, context.job_name, context.task_index
    if (job, index) == ("ps", config.servers):
        job, index = "chief", 0
    servers = spec.get("ps", [])
    addresses = {"worker": spec["worker"], "ps": servers[: config.servers], "chief": servers[config.servers :]}
    queues = (context.mgr.address, bytes(context.mgr._authkey)) if job == "worker" else None
    return NodeConfig(job, index, replace(config.assignment, addresses=addresses), queues, config.storage)


def supervise(node: NodeConfig, connection: Connection) -> NodeEnded:
    """Run the process of a node, and kill it when the driver closes the connection.

    Its standard input closes when this process ends, in whatever way.
    """
    path, log = Path(f"{node.role}.config"), Path(f"{node.role}.txt")
    path.touch(mode=0o600)  # it holds secrets
    path.write_bytes(pickle.dumps(node))
    source = str(Path(trainoff.__file__).parent.parent)  # where Spark may have put it
    python_path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRAINOFF_ROLE": node.role, "PYTHONPATH": python_path}
    argv = [sys.executable, "-m", PROGRAM, str(path)]
    with (
        log.open("wb") as sink,
        subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=sink, stderr=sink) as process,
    ):
        while process.poll() is None:
            if connection.poll(POLL_S):  # the driver sends nothing, so this is the end of the connection
                process.kill()
    return NodeEnded(process.returncode, "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]))
