"""What a lab is made of, as plain values that one process can tell another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trainoff.clusters.lab.cgroups import Cgroup, groups_at
from trainoff.clusters.local import Node, Process, Processes
from trainoff.errors import TrainoffError
from trainoff.study.machines import NodeSpec

FILE = "lab.json"  # in the folder of a trial
NETWORK = "10.77"  # nobody outside the lab can see it
INTERFACE = "eth0"  # of every node


def gone(folder: Path, number: int) -> Path:
    """The file in a trial's folder that says that a node is dead."""
    return folder / f"gone-{number}"


def address_of(number: int) -> str:
    """The address of a node."""
    return f"{NETWORK}.{(number + 1) // 250}.{(number + 1) % 250 + 1}"


@dataclass(frozen=True)
class LabPlan:
    """A lab: its name, where its control groups are, its nodes, and the descriptors of their networks.

    The descriptors belong to the process that keeps the lab, which is process 1 where the lab's own processes live.
    """

    name: str
    version: str  # of control groups
    place: str
    specs: Sequence[NodeSpec]
    networks: Sequence[int] = ()

    @property
    def nodes(self) -> list[Node]:
        return [Node(f"node-{number}", address_of(number)) for number in range(len(self.specs))]

    def group(self, number: int) -> Cgroup:
        """The control group of a node, which the ground has made."""
        return groups_at(self.version, Path(self.place)).node(self.name, f"node-{number}")

    def door(self, number: int, keeper: str | int = 1) -> list[str]:
        """The words before a command that runs it on a node: in its group, then in its network."""
        line = 'doors="$0"; network="$1"; shift; for each in $doors; do echo $$ > "$each" || exit 125; done; '
        line += 'exec nsenter --net="$network" -- "$@"'
        doors = " ".join(map(str, self.group(number).doors))
        return ["/bin/sh", "-c", line, doors, f"/proc/{keeper}/fd/{self.networks[number]}"]

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> LabPlan:
        return LabPlan.from_json(json.loads((folder / FILE).read_text()))

    @staticmethod
    def from_json(value: dict[str, object]) -> LabPlan:
        specs = [NodeSpec(**each) for each in value.pop("specs")]  # type: ignore[attr-defined]  # a list, from JSON
        return LabPlan(specs=specs, **value)  # type: ignore[arg-type]  # what asdict() made


class LabCluster(Processes):
    """The nodes of a lab that the supervisor has made. The driver is on the first of them, as on a cluster's master."""

    def __init__(self, plan: LabPlan, folder: Path) -> None:
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
