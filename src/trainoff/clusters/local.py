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
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import psutil

from trainoff.errors import TrainoffError

Readiness = Callable[["Process"], bool]

THREADS = (  # the variables by which libraries are told how many to use
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
LOG_TAIL = 50  # lines of a failing process that reach the record
GRACE_S = 5.0  # between the polite signal and the other one
KILLED_S = 10.0  # how long a process that was killed may take to be gone, where the machine is busy


class Process:
    """A running process of a cluster. It leads a group of its own, so that its children end with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], role: str, log: Path) -> None:
        self.role = role
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0  # before that, another process of this role speaks
        with log.open("ab") as sink:
            self._popen = subprocess.Popen(
                list(argv),
                env={**os.environ, **env, "TRAINOFF_ROLE": role},
                stdin=subprocess.PIPE,  # nothing comes through it; it closes when this process ends, however it does
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
        """The name of the signal that ended it; empty if none did."""
        code = self.exit_code or 0
        return signal.Signals(-code).name if code < 0 else ""

    def tail(self, lines: int = LOG_TAIL) -> str:
        """The end of the process's log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """Its whole log."""
        return self.log.read_bytes()[self._from :].decode(errors="replace")

    def says(self, pattern: str) -> bool:
        """Whether the log holds a line that matches: the simplest sign of readiness."""
        return re.search(pattern, self.log_text(), re.MULTILINE) is not None

    def wait_ready(self, ready: Readiness, timeout_s: float) -> None:
        """Wait until `ready(self)`; fails at once if the process ends first, and says why with its log."""
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

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End it: politely first, then for certain, and return when all that it has started is gone, too."""
        # Once it has ended and was reaped, another process may have its number.
        started = self._descendants() if self.exit_code is None else []
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        self._popen.wait()
        for process in started:  # some are in groups of their own, as torchrun's workers
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


class Cluster(Protocol):
    """What every kind of cluster offers to an engine."""

    nodes: Sequence[Node]
    driver_node: Node  # where the driver is: the process that calls the engine
    processes: Sequence[Process]  # those that were started and not ended yet
    python: str  # the interpreter on the nodes

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        """Reach the nodes, and see that each has these modules as they are here, and Java if it is needed."""

    def send_files(self, paths: Iterable[Path]) -> None:
        """See that processes on the nodes find these files and folders, where they have other disks."""

    def fetch_logs(self) -> None:
        """See that what processes on the nodes have written into the folder of logs is here."""

    def place(self, number: int) -> Node:
        """Where a worker belongs: on the node of its number, or on one that lives if that is dead."""
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
        """Start a process on a node under a role (master, worker-0, ps-1, ...); every process is started here.

        With `ready`, returns once it holds. The log goes to `logs/<role>.txt`.
        """

    def end(self, process: Process) -> None:
        """Kill one process at once, and forget it."""

    def stop(self) -> None:
        """End every process, the last one started first."""

    def timed(self) -> AbstractContextManager[None]:
        """What holds while a training or a test is timed: only then emulated nodes are slow."""

    def failed(self) -> Process | None:
        """The first process that ended with an error, if one did."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Processes(Cluster):
    """As many nodes as there are workers, all of them this machine, on its loopback address."""

    def __init__(self, workers: int, folder: Path) -> None:
        self.nodes = [Node(f"node-{number}", "127.0.0.1") for number in range(workers)]
        self.driver_node = self.nodes[0]
        self.python = sys.executable
        self._logs = folder / "logs"
        self._scratch = folder / "tmp"
        self._started: list[Process] = []

    @property
    def processes(self) -> Sequence[Process]:  # type: ignore[override]  # to be read only
        return self._started

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
        self._logs.mkdir(exist_ok=True)
        self._scratch.mkdir(exist_ok=True)
        own = {"TMPDIR": str(self._scratch)}  # what a process leaves there when it is killed goes with the trial
        try:
            process = self._start(node, argv, {**own, **env}, role)
        except OSError as error:
            raise TrainoffError(f"{role} could not be started on {node.name}: {error}") from error
        self._started.append(process)
        if ready:
            process.wait_ready(ready, timeout_s)
        return process

    def timed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        """Nothing has to be reached."""

    def send_files(self, paths: Iterable[Path]) -> None:
        """Everything is here."""

    def fetch_logs(self) -> None:
        """They are here, too."""

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        return Process(argv, env, role, self._logs / f"{role}.txt")

    def failed(self) -> Process | None:
        return next((process for process in self._started if process.exit_code not in (None, 0)), None)

    def end(self, process: Process) -> None:
        if process in self._started:  # once is enough
            self._started.remove(process)
            process.stop(0.0)

    def stop(self, grace_s: float = GRACE_S) -> None:
        while self._started:
            self._started.pop().stop(grace_s)


EACH = 2  # so many on a CPU are no crowd


def cpus() -> list[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def crowded(seconds: float, processes: int) -> float:
    """How long to wait for so many processes, each of which should take at most so many seconds to be there."""
    return seconds * max(1.0, processes / (EACH * len(cpus())))


LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the interface's name, which gloo wants to know
# Below those that the system gives to callers: one who calls before the server listens could be given its very port.
FIRST, LAST = 20_001, 32_000  # and above 19,999, which Ray keeps for its workers
TRIES = 1000
_SYSTEM = random.SystemRandom()  # two processes with one seed would try the same ports
DISCARD = 9  # a port to ask the way to; nothing is sent there


def free_ports(hosts: Sequence[str]) -> list[int]:
    """A free port on each host; in a trial's own network nobody else can take them meanwhile.

    On another machine than this one it is a guess.
    """
    with ExitStack() as stack:
        return [_hold(stack.enter_context(socket.socket()), host) for host in hosts]


def address_towards(host: str) -> str:
    """This machine's address on the way to another, which the system knows without a packet being sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, DISCARD))
        found: str = way.getsockname()[0]
        return found


def _hold(held: socket.socket, host: str) -> int:
    """Bind a socket to a port that nobody has, and return it."""
    for _ in range(TRIES):
        port = _SYSTEM.randint(FIRST, LAST)
        try:
            held.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # an address of another machine: only there it is known
                return port
            continue
        return port
    raise OSError(f"{host} has no free port between {FIRST} and {LAST}")


_PR_SET_PDEATHSIG = 1


def threads(cores: float) -> int:
    """Return how many threads a library may use on a share of the CPUs."""
    return ceil(cores)


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raises OSError with its reason."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Attached(Processes):
    """The address of a cluster, and what its owner wants it to be told.

    Its one node is this machine, for what an engine needs here to speak with the cluster, such as a driver.
    """

    def __init__(self, address: str, properties: Mapping[str, str], folder: Path) -> None:
        super().__init__(1, folder)
        self.address, self.properties = address, properties
