"""The `attach` cluster: one that exists already, used by naming it. trainoff starts and ends nothing there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from trainoff.clusters.process import Process
from trainoff.clusters.processes import Cluster, Node


@dataclass
class Attached(Cluster):
    """The address of a cluster, and what its owner wants it to be told."""

    address: str
    properties: Mapping[str, str] = field(default_factory=dict)
    nodes: Sequence[Node] = ()
    processes: Sequence[Process] = ()

    def spawn(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("no process is started on a cluster that is only attached to")

    def failed(self) -> Process | None:
        """Its processes are not ours to watch."""
        return None

    def end(self, process: Process) -> None:
        """No process of it is ours."""

    def stop(self) -> None:
        """It goes on without us."""
