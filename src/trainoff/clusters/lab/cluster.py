"""The `lab` cluster as an engine sees it: nodes with addresses of their own, and the same door to start processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainoff.clusters.lab.nodes import INTERFACE, Plan, gone
from trainoff.clusters.process import Process
from trainoff.clusters.processes import Node, Processes
from trainoff.errors import TrainoffError


class LabCluster(Processes):
    """The nodes of a lab that the warden has made. The driver is on the first of them, as on a cluster's master."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(len(plan.specs), folder)
        self._plan, self._folder = plan, folder
        self.nodes = plan.nodes
        self.here = self.nodes[0]
        self._groups = [plan.group(number) for number in range(len(plan.specs))]

    def place(self, number: int) -> Node:
        """The worker of a dead node goes to one that lives, as a resource manager would do; last to the first one."""
        dead = [other for other in range(len(self.nodes)) if gone(self._folder, other).exists()]
        living = [node for other, node in enumerate(self.nodes) if other not in dead][::-1]
        return living[dead.index(number) % len(living)] if number in dead and living else self.nodes[number]

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        number = self.nodes.index(node)
        if gone(self._folder, number).exists():
            raise TrainoffError(f"{role} could not be started: {node.name} is gone")
        told = {"GLOO_SOCKET_IFNAME": INTERFACE, **env}
        return super()._start(node, [*self._plan.door(number), *argv], told, role)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Nodes are as slow as they are meant to be while the clock runs; to start slowly would only take time."""
        for group, spec in zip(self._groups, self._plan.specs, strict=True):
            group.set_cores(spec.cores)
        try:
            yield
        finally:
            for group in self._groups:
                group.set_cores(None)
