"""The `processes` and `attach` clusters: processes on this machine, how they start and end, their CPUs and ports."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from trainoff.errors import TrainoffError

Readiness = Callable[["Process"], bool]

THREADS = (  # the variables that limit the threads of numerical libraries
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
LOG_TAIL = 50  # lines of a failed process that are kept in the record
PROCESS_GRACE_S = 5.0  # between SIGTERM and SIGKILL of one process of a cluster
KILLED_S = 10.0  # how long a killed process may take to disappear from a busy machine


def signal_name(number: int) -> str:
    """Return a signal's name; those between SIGRTMIN and SIGRTMAX have none."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


class Process:
    """A running process of a cluster, in its own session, so that `stop` ends its children, too.

    A SIGKILL of the process alone spares them, unless they have called `die_with_parent`.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], role: str, log: Path) -> None:
        self.role = role
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0  # after an earlier process of this role
        with log.open("ab") as sink:
            self._popen = subprocess.Popen(
                list(argv),
                env={**os.environ, **env, "TRAINOFF_ROLE": role},
                stdin=subprocess.PIPE,  # never written to; it closes when this process ends
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._popen.poll()

    @property
    def killed_by(self) -> str:
        """The name of the signal that ended it, or an empty string."""
        code = self.exit_code or 0
        return signal_name(-code) if code < 0 else ""

    def tail(self, lines: int = LOG_TAIL) -> str:
        """Return the end of the log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """Return the whole log."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def says(self, pattern: str) -> bool:
        """Return whether a line of the log matches a pattern, the simplest sign of readiness."""
        return re.search(pattern, self.log_text(), re.MULTILINE) is not None

    def wait_ready(self, ready: Readiness, timeout_s: float) -> None:
        """Wait until `ready(self)`; raise TrainoffError with the end of the log if the process ends first."""
        deadline = time.monotonic() + timeout_s
        while not ready(self):
            if self.exit_code is not None:
                raise TrainoffError(f"{self.role} ended with code {self.exit_code} before it was ready:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TrainoffError(f"{self.role} was not ready after {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._popen.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self, grace_s: float = PROCESS_GRACE_S) -> None:
        """End the process with SIGTERM, then SIGKILL; return when all its descendants are gone, too."""
        started: list[psutil.Process] = []
        if self.exit_code is None:  # after it was reaped another process may have its PID
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(self.pid).children(recursive=True)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        self._popen.wait()
        for process in started:  # some are in other process groups, such as torchrun's workers
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, KILLED_S)
        if self._popen.stdin:
            self._popen.stdin.close()


@dataclass(frozen=True)
class Node:
    """A place where processes can be started."""

    name: str
    address: str


class Cluster:
    """Nodes on which an engine starts processes.

    This class is the kind `processes`: one node per worker, all of them this machine at its loopback address. The other
    kinds derive from it.
    """

    nodes: Sequence[Node]
    driver_node: Node  # where this process runs, which calls the engine
    python: str  # the interpreter on the nodes

    def __init__(self, workers: int, folder: Path) -> None:
        self.nodes = [Node(f"node-{number}", "127.0.0.1") for number in range(workers)]
        self.driver_node = self.nodes[0]
        self.python = sys.executable
        self._logs = folder / "logs"
        self._scratch = folder / "tmp"
        self._started: list[Process] = []

    @property
    def processes(self) -> Sequence[Process]:
        """The processes that were started and not ended yet."""
        return self._started

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        """Connect to the nodes; check that they have these modules in the same versions, and Java if needed."""

    def send_files(self, paths: Iterable[Path]) -> None:
        """Copy files and folders to nodes that do not share this machine's disk."""

    def fetch_logs(self) -> None:
        """Copy the folder of logs from such nodes."""

    def place(self, number: int) -> Node:
        """Return the node of a worker, or one that is alive if that is lost."""
        return self.nodes[number]

    def spawn(
        self,
        node: Node,
        argv: Sequence[str],
        env: Mapping[str, str],
        role: str,
        *,
        ready: Readiness | None = None,
        timeout_s: float = 60.0,
    ) -> Process:
        """Start a process on a node under a role (master, worker-0, ps-1, ...), and wait until it is `ready`.

        All processes of a cluster are started here. The log is `logs/<role>.txt`.
        """
        self._logs.mkdir(exist_ok=True)
        self._scratch.mkdir(exist_ok=True)
        scratch = {"TMPDIR": str(self._scratch)}  # removed with the trial, also if the process is killed
        try:
            process = self._start(node, argv, {**scratch, **env}, role)
        except OSError as error:
            raise TrainoffError(f"{role} could not be started on {node.name}: {error}") from error
        self._started.append(process)
        if ready:
            process.wait_ready(ready, timeout_s)
        return process

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        return Process(argv, env, role, self._logs / f"{role}.txt")

    def timed(self) -> AbstractContextManager[None]:
        """Return a context for a timed training or test, in which the cores of emulated nodes are limited."""
        return nullcontext()

    def failed(self) -> Process | None:
        """Return the first process that ended with an error, if there is one."""
        return next((process for process in self._started if process.exit_code not in (None, 0)), None)

    def end(self, process: Process) -> None:
        """Kill a process and forget it."""
        if process in self._started:
            self._started.remove(process)
            process.stop(0.0)

    def stop(self, grace_s: float = PROCESS_GRACE_S) -> None:
        """End all processes, the last one started first."""
        while self._started:
            self._started.pop().stop(grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class Attached(Cluster):
    """The address of an existing cluster and the user's properties for it.

    Its one node is this machine, for the processes that connect to the cluster, such as a driver.
    """

    def __init__(self, address: str, properties: Mapping[str, str], folder: Path) -> None:
        super().__init__(1, folder)
        self.address, self.properties = address, properties


PER_CPU = 2  # processes that start without slowing each other


def cpus() -> list[int]:
    """Return the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def crowded(seconds: float, processes: int) -> float:
    """Return the timeout for processes that start together, given that of one."""
    return seconds * max(1.0, processes / (PER_CPU * len(cpus())))


LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the interface's name, which gloo needs
# Below the ephemeral ports: a client that connects before its server listens could be given the server's port.
FIRST, LAST = 20_001, 32_000  # and above 19,999, the last port of Ray's workers
TRIES = 1000
_SYSTEM = random.SystemRandom()  # processes with the same seed would try the same ports
DISCARD = 9  # a port for looking up a route; nothing is sent there


def free_ports(hosts: Sequence[str]) -> list[int]:
    """Return a free port on each host (a guess on other machines); in a trial's own network it stays free."""
    with ExitStack() as stack:
        return [_bind(stack.enter_context(socket.socket()), host) for host in hosts]


def address_towards(host: str) -> str:
    """Return this machine's address on the route to a host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, DISCARD))
        return str(route.getsockname()[0])


def _bind(held: socket.socket, host: str) -> int:
    """Bind a socket to a free port and return it."""
    for _ in range(TRIES):
        port = _SYSTEM.randint(FIRST, LAST)
        try:
            held.bind((host, port))
            return port
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # the address of another machine
                return port
    raise OSError(f"{host} has no free port between {FIRST} and {LAST}")


_PR_SET_PDEATHSIG = 1


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    if sys.platform == "linux":
        call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
