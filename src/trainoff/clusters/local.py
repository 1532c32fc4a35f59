"""The `processes` cluster: everything on this machine, as processes that trainoff starts and ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from trainoff.clusters.process import GRACE_S, Process, Readiness
from trainoff.errors import TrainoffError


@dataclass(frozen=True)
class Node:
    """A place where processes can be started."""

    name: str
    address: str


class Cluster(Protocol):
    """What every kind of cluster offers to an engine."""

    nodes: Sequence[Node]
    here: Node  # where the driver is: the process that calls the engine
    processes: Sequence[Process]  # those that were started and not ended yet
    python: str  # the interpreter on the nodes

    def prepare(self, modules: Sequence[str], *, java: bool) -> None:
        """Reach the nodes, and see that each has these modules as they are here, and Java if it is needed."""

    def bring(self, paths: Iterable[Path]) -> None:
        """See that processes on the nodes find these files and folders, where they have other disks."""

    def bring_logs(self) -> None:
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
        """Start a process on a node under a role (master, worker-0, ps-1, ...); the only door.

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
        self.here = self.nodes[0]
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

    def bring(self, paths: Iterable[Path]) -> None:
        """Everything is here."""

    def bring_logs(self) -> None:
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
