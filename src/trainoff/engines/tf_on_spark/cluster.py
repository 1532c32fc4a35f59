"""A TensorFlow cluster on the executors, from the driver's side."""

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
from trainoff.engines.shared.storage import Storage
from trainoff.engines.tf_cluster.coordinator import PsAssignment
from trainoff.engines.tf_on_spark.compat import Access, end_manager, mend, run_on_executors

if TYPE_CHECKING:
    from trainoff.engines.shared.storage import Storage
    from trainoff.engines.spark.session import SparkConnection


FORM_S = 300  # how long the executors may take to find each other
EXPLAIN_S = 10.0  # how long it may take until it is known why a process is gone
POLL_S = 0.05


class TfOnSparkCluster:
    """TensorFlow processes on all executors of a Spark application, which know each other.

    `servers` is how many of them are parameter servers; with any, one more executor is the coordinator's.
    """

    def __init__(self, session: SparkConnection, servers: int) -> None:
        self._session, self._servers = session, servers
        self._others = servers + 1 if servers else 0  # executors that are not workers
        self.host: str = session.context.getConf().get("spark.driver.host")
        self._secret = secrets.token_bytes(32)
        self._membership = Membership(self.host)
        self._aside = ThreadPoolExecutor(1)
        self._package: Any = None
        self._nodes: Any = None

    def start(self, assignment: PsAssignment, storage: Storage | None = None) -> None:
        """Have tensorflowonspark form the cluster; returns when all have found each other.

        From `storage`, if it is given, every process reads the rows by itself.
        """
        self._package = package = mend(self.host, self._secret)
        run_on_executors(package, self.host, self._secret)
        package.TFCluster.tf_status.clear()  # of the cluster before, if there was one
        orders = NodeConfig(assignment, self._membership.number, self._servers, storage)
        try:
            self._cluster = package.TFCluster.run(
                self._session.context,
                launch_node,
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
        self._membership.check()
        if self._package and self._package.TFCluster.tf_status:
            raise self._why()
        if role := self._membership.lost:
            raise self._gone(role)

    def _gone(self, role: str) -> Exception:
        """Why nothing is heard of a process any more, as soon as somebody knows."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            self._membership.check()
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
        self._membership.close()
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


@dataclass(frozen=True)
class NodeEnded:
    """What a TensorFlow process has left."""

    code: int
    log: str


class Membership:
    """The driver's end."""

    def __init__(self, host: str) -> None:
        secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0))
        self.number = Endpoint(host, self._listener.address[1], secret)
        self._present: dict[str, Connection] = {}
        self._failed: WorkerFailed | None = None
        self._lost: str | None = None
        self._over = False
        threading.Thread(target=self._call, daemon=True).start()

    def _call(self) -> None:
        while not self._over:
            try:
                line = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: Connection) -> None:
        role = ""
        try:
            deliver_challenge(line, self.number.secret)
            answer_challenge(line, self.number.secret)
            role = line.recv()
            self._present[role] = line
            if self._over:
                line.close()  # too late
            ended: NodeEnded = line.recv()
        except (OSError, EOFError, AuthenticationError):
            if role and not self._over:
                self._lost = self._lost or role
            return
        if not self._over:
            said = ended.log if ended.code > 0 else f"TensorFlow's process ended with code {ended.code}"
            self._failed = self._failed or WorkerFailed(role, said, ended.log)

    def check(self) -> None:
        """Raise if a process has failed and said why."""
        if self._failed:
            raise self._failed

    @property
    def lost(self) -> str | None:
        """The role of a process of which nothing is heard any more, though it never said that it ended."""
        return self._lost

    def close(self) -> None:
        """Send all home: their stewards end the processes."""
        self._over = True
        for line in list(self._present.values()):
            with suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)  # to close it would not do while a thread listens to it
        with suppress(OSError):
            waiting = self._listener._listener._socket  # type: ignore[attr-defined]  # to wake up who waits there
            waiting.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def call(number: Endpoint, role: str) -> Connection:
    """Say to the driver that somebody is there; when it hangs up, it is time to go."""
    line: Connection = Client((number.host, number.port), authkey=number.secret)
    line.send(role)
    return line


PROGRAM = "trainoff.engines.tf_on_spark.node"


@dataclass(frozen=True)
class NodeConfig:
    """What every TensorFlow process of a cluster is given. The addresses of all are added on the executor."""

    assignment: PsAssignment
    membership: Endpoint
    servers: int  # how many of those that Spark calls parameter servers are; the one after them coordinates
    storage: Storage | None  # from which every process reads the rows; else they are here, or are pushed


@dataclass(frozen=True)
class NodePost:
    """What one of them is given: its job and number, and where rows come from."""

    job: str
    number: int
    assignment: PsAssignment
    queues: tuple[Any, bytes] | None  # the address and key of the manager that has them
    storage: Storage | None

    @property
    def role(self) -> str:
        """Its name among the processes of the trial."""
        return role_of(self.job, self.number)

    @property
    def address(self) -> str:
        return self.assignment.addresses[self.job][self.number]


def role_of(job: str, number: int) -> str:
    """The name of a TensorFlow process."""
    return "tf-chief" if job == "chief" else f"tf-{job}-{number}"


def place_of(orders: NodeConfig, context: Any) -> tuple[str, int]:
    """The job and number of the process here, by what tensorflowonspark says of it."""
    job, number = context.job_name, context.task_index
    return ("chief", 0) if (job, number) == ("ps", orders.servers) else (job, number)


def launch_node(given: dict[str, NodeConfig], context: Any) -> None:
    """Run one TensorFlow process to its end, or to the driver's."""
    orders = given["orders"]
    line = call(orders.membership, role_of(*place_of(orders, context)))
    try:
        ended = watch_over(assign(orders, context), line)
    except Exception:
        ended = NodeEnded(1, traceback.format_exc())
    with suppress(OSError):
        line.send(ended)


def watch_over(post: NodePost, line: Connection) -> NodeEnded:
    """Run the process of a post; when the driver hangs up, it is ended."""
    log = Path(f"{post.role}.txt")
    with start(post, log) as process:
        while process.poll() is None:
            if line.poll(POLL_S):  # the driver says nothing; it hung up
                process.kill()
    return NodeEnded(process.returncode, tail(log))


def assign(orders: NodeConfig, context: Any) -> NodePost:
    """What the process here is to do, by what tensorflowonspark says of it."""
    spec, (job, number) = context.cluster_spec, place_of(orders, context)
    servers = spec.get("ps", [])
    addresses = {"worker": spec["worker"], "ps": servers[: orders.servers], "chief": servers[orders.servers :]}
    queues = (context.mgr.address, bytes(context.mgr._authkey)) if job == "worker" else None
    return NodePost(job, number, replace(orders.assignment, addresses=addresses), queues, orders.storage)


def start(post: NodePost, log: Path) -> subprocess.Popen[bytes]:
    """Start the process. Its standard input closes with this one, however that ends."""
    path = Path(f"{post.role}.post")
    path.touch(mode=0o600)  # it holds secrets
    path.write_bytes(pickle.dumps(post))
    here = str(Path(trainoff.__file__).parent.parent)  # where Spark may have put it
    python_path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(path)],
            env={**os.environ, "TRAINOFF_ROLE": post.role, "PYTHONPATH": python_path},
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )


def tail(log: Path) -> str:
    """The end of what the process has said."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
