"""The `lab` cluster: its plan, the cluster that an engine sees, and the network of its nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from trainoff.clusters.lab.cgroups import Cgroup, groups_at
from trainoff.clusters.local import Cluster, Node, Process, call
from trainoff.errors import TrainoffError
from trainoff.study.machines import NodeSpec

FILE = "lab.json"  # in the folder of a trial
NETWORK = "10.77"  # visible in the lab only
INTERFACE = "eth0"  # of every node
UNFILLED_BYTES = 4 * 2**20  # when a node's memory is filled


def gone(folder: Path, number: int) -> Path:
    """Return the file in a trial's folder whose existence says that a node is dead."""
    return folder / f"gone-{number}"


def address_of(number: int) -> str:
    """Return the address of a node."""
    return f"{NETWORK}.{(number + 1) // 250}.{(number + 1) % 250 + 1}"


@dataclass(frozen=True)
class LabPlan:
    """A lab: its name, where its control groups are, its nodes, and the descriptors of their networks.

    The descriptors are those of the lab's supervisor, which is PID 1 in the lab's PID namespace.
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
        """Return the control group of a node."""
        return groups_at(self.version, Path(self.place)).node(self.name, f"node-{number}")

    def enter_command(self, number: int, supervisor: str | int = 1) -> list[str]:
        """Return the prefix that runs a command on a node: in its group and its network."""
        script = 'files="$0"; network="$1"; shift; for each in $files; do echo $$ > "$each" || exit 125; done; '
        script += 'exec nsenter --net="$network" -- "$@"'
        process_files = " ".join(map(str, self.group(number).process_files))
        return ["/bin/sh", "-c", script, process_files, f"/proc/{supervisor}/fd/{self.networks[number]}"]

    def write(self, folder: Path) -> None:
        (folder / FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(folder: Path) -> LabPlan:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=LabPlan)


def fill_memory(folder: str, number: str) -> None:
    """Fill the memory of a node up to its limit; the kernel then kills other processes there that allocate more."""
    plan = LabPlan.read(Path(folder))
    with suppress(OSError):  # without root the kernel may kill this process, too
        Path("/proc/self/oom_score_adj").write_text("-1000")
    group, limit = plan.group(int(number)), plan.specs[int(number)].memory_bytes or 0
    filling = []
    while limit - group.usage().memory_bytes > UNFILLED_BYTES:
        filling.append(bytearray(b"1" * 2**20))
    signal.pause()


class LabCluster(Cluster):
    """The nodes of a lab, which its supervisor has made. The driver is on the first one, as on a cluster's master."""

    def __init__(self, plan: LabPlan, folder: Path) -> None:
        super().__init__(len(plan.specs), folder)
        self._plan, self._folder = plan, folder
        self.nodes = plan.nodes
        self.driver_node = self.nodes[0]
        self._groups = [plan.group(number) for number in range(len(plan.specs))]

    def place(self, number: int) -> Node:
        """Return the node of a worker; that of a dead node moves to a living one, to the first one last."""
        dead = [other for other in range(len(self.nodes)) if gone(self._folder, other).exists()]
        living = [node for other, node in enumerate(self.nodes) if other not in dead][::-1]
        return living[dead.index(number) % len(living)] if number in dead and living else self.nodes[number]

    def _start(self, node: Node, argv: Sequence[str], env: Mapping[str, str], role: str) -> Process:
        number = self.nodes.index(node)
        if gone(self._folder, number).exists():
            raise TrainoffError(f"{role} could not be started: {node.name} is gone")
        env = {"GLOO_SOCKET_IFNAME": INTERFACE, **env}
        return super()._start(node, [*self._plan.enter_command(number), *argv], env, role)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Limit the nodes' cores while a training or a test is timed; starting runs at full speed."""
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
BURST_S, LEAST_BURST = 0.005, 128 * 1024  # of the token bucket; the largest packet must fit
QUEUE_S = 0.1  # packets that would wait longer are dropped, as in a switch


class LabNetwork:
    """The bridge and the nodes' links, which exist as long as the process that made them."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self.descriptors: list[int] = []
        _run("ip", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")
        for number in range(len(specs)):
            self.descriptors.append(_in_thread(partial(_make_node, number)))
        _run("ip", *(f"link set {port_of(number)} master {BRIDGE} up" for number in range(len(specs))))
        for number, spec in enumerate(specs):
            self.shape(number, spec.bandwidth_mbit, spec.latency_ms)

    def inside(self, number: int, work: Callable[[], T]) -> T:
        """Call a function in the network of a node."""

        def enter() -> T:
            call("setns", self.descriptors[number], CLONE_NEWNET)
            return work()

        return _in_thread(enter)

    def shape(self, number: int, mbit: float | None, latency_ms: float | None = None) -> None:
        """Limit a node's link in both directions; None removes the limit."""
        _run("tc", *_shaping(port_of(number), mbit, None), forgiving=mbit is None)
        unlimited = mbit is None and not latency_ms
        self.inside(number, lambda: _run("tc", *_shaping(INTERFACE, mbit, latency_ms), forgiving=unlimited))

    def cut(self, number: int) -> None:
        """Disconnect a node: its packets are lost without an error on either side."""
        _run("ip", f"link set {port_of(number)} nomaster")

    def heal(self, number: int) -> None:
        """Connect a node again."""
        _run("ip", f"link set {port_of(number)} master {BRIDGE}")


def _in_thread(work: Callable[[], T]) -> T:
    """Call a function in a new thread, which may enter another network than the rest of the process."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _make_node(number: int) -> int:
    """Make a network namespace with a link to this process's; return a descriptor that keeps it alive."""
    call("unshare", CLONE_NEWNET)
    link = f"link add {INTERFACE} type veth peer name {port_of(number)} netns {os.getpid()}"
    address = f"addr add {address_of(number)}/16 broadcast {NETWORK}.255.255 dev {INTERFACE}"
    _run("ip", "link set lo up", link, address, f"link set {INTERFACE} up")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def port_of(number: int) -> str:
    """Return the bridge's end of a node's link."""
    return f"node{number}"


def _shaping(device: str, mbit: float | None, latency_ms: float | None) -> list[str]:
    if not mbit and not latency_ms:
        return [f"qdisc del dev {device} root"]
    delay = f"netem delay {latency_ms}ms limit 100000" if latency_ms else ""
    if not mbit:
        return [f"qdisc replace dev {device} root {delay}"]
    burst = max(LEAST_BURST, round(mbit * MBIT / 8 * BURST_S))
    limit = f"qdisc replace dev {device} root handle 1: tbf rate {mbit}mbit burst {burst} latency {QUEUE_S * 1000}ms"
    return [limit, f"qdisc replace dev {device} parent 1:1 handle 2: {delay}"] if delay else [limit]


def node_traffic(net: Path) -> dict[int, tuple[int, int]]:
    """Return the bytes that each node has sent and received, by the bridge's ports in a file like /proc/net/dev."""
    ports = re.findall(r"^ *node(\d+): *(\d+)(?: +\d+){7} +(\d+)", net.read_text(), re.MULTILINE)
    return {int(number): (int(received), int(sent)) for number, received, sent in ports}  # the port's, so swapped


def _run(program: str, *commands: str, forgiving: bool = False) -> None:
    """Run a batch of `ip` or `tc` commands; `forgiving` ignores errors."""
    try:
        batch = "\n".join(commands) + "\n"
        done = subprocess.run([program, "-batch", "-"], input=batch, capture_output=True, text=True)
    except FileNotFoundError:
        raise TrainoffError(f"the lab needs `{program}`; apt-get install iproute2") from None
    if done.returncode and not forgiving:
        reason = next(iter(done.stderr.strip().splitlines()), f"{program} ended with {done.returncode}")
        raise TrainoffError(f"the lab's network could not be made: {reason}")
