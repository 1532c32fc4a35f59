"""A Ray cluster: a head without cores, and a node for every worker, as processes of a cluster.

The head is beside the driver, which needs a part of Ray on its own machine. An engine connects to its address. What
Ray leaves on disk lies in the trial's folder, and is gone with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainoff.clusters.local import LOOPBACK, Cluster, Node, Process, crowded

READY_S = 300.0
STARTED = "Ray runtime started"
PROGRAM = "trainoff.clusters.ray"


@dataclass
class RayCluster:
    """The processes of a Ray cluster, each on the node of its number."""

    cluster: Cluster
    folder: Path  # the trial's
    port: int
    cores: int  # of each worker
    store_bytes: int  # memory for objects on every node
    dashboard_port: int | None = None
    head: Process | None = None
    nodes: list[Process] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where the head is."""
        return f"{self.cluster.driver_node.address}:{self.port}"

    @property
    def lives(self) -> bool:
        """Whether there is a head."""
        return self.head is not None and self.head.exit_code is None

    def start(self) -> None:
        """Start the head, then all nodes; returns when they have joined."""
        dashboard = ["--include-dashboard", "true" if self.dashboard_port else "false"]
        if self.dashboard_port:
            where = self.cluster.driver_node.address
            dashboard += ["--dashboard-host", where, "--dashboard-port", str(self.dashboard_port)]
        # Without the monitor, for nodes neither come nor go by themselves.
        options = ["--head", "--port", str(self.port), "--num-cpus", "0", "--no-monitor", *dashboard]
        self.head = self._spawn(self.cluster.driver_node, "head", options)
        self._wait_for([self.head])
        self.nodes = [self._join(number) for number in range(len(self.cluster.nodes))]
        self._wait_for(self.nodes)

    def replace_lost(self) -> int:
        """Start nodes anew that are gone; returns how many."""
        lost = [number for number, node in enumerate(self.nodes) if node.exit_code is not None]
        self._replace(lost)
        return len(lost)

    def replace_all(self) -> None:
        """Start all nodes anew, whatever they do."""
        self._replace(range(len(self.nodes)))

    def _replace(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.cluster.end(self.nodes[number])
            self.nodes[number] = self._join(number)

    def _join(self, number: int) -> Process:
        options = ["--address", self.address, "--num-cpus", str(self.cores)]
        return self._spawn(self.cluster.place(number), f"worker-{number}", options)

    def _spawn(self, node: Node, role: str, options: Sequence[str]) -> Process:
        here = ["--node-ip-address", node.address, "--temp-dir", str(self._place(role))]
        lean = ["--object-store-memory", str(self.store_bytes), "--include-log-monitor", "false"]
        argv = [sys.executable, "-m", PROGRAM, *options, *here, *lean, "--disable-usage-stats", "--block"]
        return self.cluster.spawn(node, argv, environment(node.address), role)

    def _place(self, role: str) -> Path:
        """Where a node has its files: in the trial's folder, by a name that is short enough for sockets.

        The folder may have a long path; but it is where this process is, and Linux knows it by that name, too.
        """
        (self.folder / "ray" / role).mkdir(parents=True, exist_ok=True)
        here = Path(f"/proc/{os.getpid()}/cwd")
        return (here if here.exists() and here.samefile(self.folder) else self.folder) / "ray" / role

    def _wait_for(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.wait_ready(lambda each: each.says(STARTED), crowded(READY_S, len(processes)))

    def stop(self) -> None:
        """End all processes at once; asked politely, Ray takes half a minute."""
        for process in (*self.nodes, *([self.head] if self.head else [])):
            self.cluster.end(process)
        self.head, self.nodes = None, []


def environment(address: str) -> dict[str, str]:
    """What Ray's processes, and those that they start, have in their environment."""
    return {
        **({"GLOO_SOCKET_IFNAME": LOOPBACK} if address.startswith("127.") else {}),
        "TMPDIR": tempfile.gettempdir(),  # the trial's folder may be too deep for the names of sockets
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # memory is watched by trainoff; Ray would restart workers unseen
        "RAY_enable_worker_prestart": "0",  # processes for tasks that nobody has
        "RAY_prestart_worker_first_driver": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how often Ray Train looks at its workers
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(READY_S),
    }


# Commands besides `start`: to load them takes three times as long as to load the rest, and Ray can do without.
OTHER_COMMANDS = ("ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")


def stay_on_loopback() -> None:
    """Let this process's Ray keep the address 127.0.0.1."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def main() -> None:
    sys.modules.update(dict.fromkeys(OTHER_COMMANDS))  # type: ignore[arg-type]  # None: Python will not find them
    from ray.scripts import scripts

    from trainoff.clusters.local import die_with_parent

    # Without that a server waits for clients, and none will come.
    scripts.get_ray_client_dependency_error = ImportError  # what it has imported itself

    die_with_parent()
    if "127.0.0.1" in sys.argv:
        stay_on_loopback()
    scripts.start(sys.argv[1:])


if __name__ == "__main__":
    main()
