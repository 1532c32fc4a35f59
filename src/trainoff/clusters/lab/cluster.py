"""The `lab` cluster: its plan as plain values, the cluster that an engine sees, and the network of its nodes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainoff.clusters.lab.cgroups import Cgroup, groups_at
from trainoff.clusters.local import Cluster, Node, Process, call
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

    def enter_command(self, number: int, keeper: str | int = 1) -> list[str]:
        """The words before a command that runs it on a node: in its group, then in its network."""
        line = 'files="$0"; network="$1"; shift; for each in $files; do echo $$ > "$each" || exit 125; done; '
        line += 'exec nsenter --net="$network" -- "$@"'
        process_files = " ".join(map(str, self.group(number).process_files))
        return ["/bin/sh", "-c", line, process_files, f"/proc/{keeper}/fd/{self.networks[number]}"]

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> LabPlan:
        return LabPlan.from_json(json.loads((folder / FILE).read_text()))

    @staticmethod
    def from_json(value: dict[str, object]) -> LabPlan:
        specs = [NodeSpec(**each) for each in value.pop("specs")]  # type: ignore[attr-defined]  # a list, from JSON
        return LabPlan(specs=specs, **value)  # type: ignore[arg-type]  # what asdict() made


class LabCluster(Cluster):
    """The nodes of a lab that the supervisor has made. The driver is on the first of them, as on a cluster's master."""

    def __init__(self, plan: LabPlan, folder: Path) -> None:
        super().__init__(len(plan.specs), folder)
        self._plan, self._folder = plan, folder
        self.nodes = plan.nodes
        self.driver_node = self.nodes[0]
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
        return super()._start(node, [*self._plan.enter_command(number), *argv], told, role)

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


T = TypeVar("T")
CLONE_NEWNET = 0x40000000
BRIDGE = "lab"
MBIT = 1_000_000
BURST_S, LEAST_BURST = 0.005, 128 * 1024  # a link lets so much through at once; a packet of the kernel's must fit
QUEUE_S = 0.1  # what waits longer to be sent is dropped, as in a switch


class LabNetwork:
    """The bridge and the nodes' links. It lives as long as the process that made it."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self.descriptors: list[int] = []
        _run("ip", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")
        for number in range(len(specs)):
            self.descriptors.append(_aside(partial(_make_node, number)))
        _run("ip", *(f"link set {port_of(number)} master {BRIDGE} up" for number in range(len(specs))))
        for number, spec in enumerate(specs):
            self.shape(number, spec.bandwidth_mbit, spec.latency_ms)

    def inside(self, number: int, work: Callable[[], T]) -> T:
        """Do something in the network of a node."""

        def there() -> T:
            call("setns", self.descriptors[number], CLONE_NEWNET)
            return work()

        return _aside(there)

    def shape(self, number: int, mbit: float | None, latency_ms: float | None = None) -> None:
        """Make a node's link so fast in both directions; None: as fast as the machine is."""
        _run("tc", *_shaping(port_of(number), mbit, None), forgiving=mbit is None)
        nothing = mbit is None and not latency_ms
        self.inside(number, lambda: _run("tc", *_shaping(INTERFACE, mbit, latency_ms), forgiving=nothing))

    def cut(self, number: int) -> None:
        """Pull the plug of a node: nothing reaches it, and nobody is told."""
        _run("ip", f"link set {port_of(number)} nomaster")

    def heal(self, number: int) -> None:
        """Put the plug back."""
        _run("ip", f"link set {port_of(number)} master {BRIDGE}")


def _aside(work: Callable[[], T]) -> T:
    """Do something in a thread of its own: a thread may be in another network than the rest of its process."""
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(work).result()


def _make_node(number: int) -> int:
    """Make a network namespace with a link that ends in this process's own; returns a descriptor that keeps it."""
    call("unshare", CLONE_NEWNET)
    link = f"link add {INTERFACE} type veth peer name {port_of(number)} netns {os.getpid()}"
    address = f"addr add {address_of(number)}/16 broadcast {NETWORK}.255.255 dev {INTERFACE}"
    _run("ip", "link set lo up", link, address, f"link set {INTERFACE} up")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def port_of(number: int) -> str:
    """The bridge's end of a node's link."""
    return f"node{number}"


def _shaping(device: str, mbit: float | None, latency_ms: float | None) -> list[str]:
    if not mbit and not latency_ms:
        return [f"qdisc del dev {device} root"]
    delay = f"netem delay {latency_ms}ms limit 100000" if latency_ms else ""
    if not mbit:
        return [f"qdisc replace dev {device} root {delay}"]
    burst = max(LEAST_BURST, round(mbit * MBIT / 8 * BURST_S))
    lines = [f"qdisc replace dev {device} root handle 1: tbf rate {mbit}mbit burst {burst} latency {QUEUE_S * 1000}ms"]
    return [*lines, f"qdisc replace dev {device} parent 1:1 handle 2: {delay}"] if delay else lines


def carried(net: Path) -> dict[int, tuple[int, int]]:
    """What each node has sent and received, as the bridge's ports counted it; `net` is a file like /proc/net/dev."""
    found = {}
    for line in net.read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        number, counts = name.strip().removeprefix("node"), rest.split()
        if name.strip().startswith("node") and number.isdigit():
            found[int(number)] = int(counts[0]), int(counts[8])  # what the port received the node has sent
    return found


def _run(program: str, *lines: str, forgiving: bool = False) -> None:
    """Run lines of `ip` or `tc`."""
    try:
        done = subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    except FileNotFoundError:
        raise TrainoffError(f"the lab needs `{program}`; apt-get install iproute2") from None
    if done.returncode and not forgiving:
        said = next(iter(done.stderr.strip().splitlines()), f"{program} ended with {done.returncode}")
        raise TrainoffError(f"the lab's network could not be made: {said}")
