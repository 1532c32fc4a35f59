"""A Ray cluster: a head without cores, and a node for every worker, as processes of a cluster.

The head runs beside the driver, which needs a Ray node on its machine. Ray's files lie in the trial's folder and are
removed with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainoff.clusters.local import LOOPBACK, Cluster, Node, Process, crowded, die_with_parent

PRIVATE_FILES = ("ray/head/*",)  # in the trial's folder, not to be copied to other machines
READY_S = 300.0


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
        """The address of the head, to which an engine connects."""
        return f"{self.cluster.driver_node.address}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the head runs."""
        return self.head is not None and self.head.exit_code is None

    def start(self) -> None:
        """Start the head, then all nodes; return when they have joined."""
        dashboard = ["--include-dashboard", "true" if self.dashboard_port else "false"]
        if self.dashboard_port:
            host = self.cluster.driver_node.address
            dashboard += ["--dashboard-host", host, "--dashboard-port", str(self.dashboard_port)]
        # The monitor is for autoscaling.
        options = ["--head", "--port", str(self.port), "--num-cpus", "0", "--no-monitor", *dashboard]
        self.head = self._spawn(self.cluster.driver_node, "head", options)
        self._wait_for([self.head])
        self.nodes = [self._join(number) for number in range(len(self.cluster.nodes))]
        self._wait_for(self.nodes)

    def replace_nodes(self, *, running: bool) -> int:
        """Replace the nodes that have ended, and with `running` all others; return how many."""
        replaced = [number for number, node in enumerate(self.nodes) if running or node.exit_code is not None]
        for number in replaced:
            self.cluster.end(self.nodes[number])
            self.nodes[number] = self._join(number)
        return len(replaced)

    def _join(self, number: int) -> Process:
        options = ["--address", self.address, "--num-cpus", str(self.cores)]
        return self._spawn(self.cluster.place(number), f"worker-{number}", options)

    def _spawn(self, node: Node, role: str, options: Sequence[str]) -> Process:
        place = ["--node-ip-address", node.address, "--temp-dir", str(self._folder_of(role))]
        lean = ["--object-store-memory", str(self.store_bytes), "--include-log-monitor=false", "--disable-usage-stats"]
        argv = [sys.executable, "-m", "trainoff.clusters.ray", *options, *place, *lean, "--block"]
        return self.cluster.spawn(node, argv, environment(node.address), role)

    def _folder_of(self, role: str) -> Path:
        """Return a node's folder in the trial's, by a path that is short enough for sockets.

        The trial's folder may have a long path, but it is this process's working directory, which has a short one.
        """
        (self.folder / "ray" / role).mkdir(parents=True, exist_ok=True)
        short = Path(f"/proc/{os.getpid()}/cwd")
        return (short if short.exists() and short.samefile(self.folder) else self.folder) / "ray" / role

    def _wait_for(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.wait_ready(lambda each: each.says("Ray runtime started"), crowded(READY_S, len(processes)))

    def stop(self) -> None:
        """Kill all processes: with SIGTERM Ray takes half a minute to end."""
        for process in filter(None, (*self.nodes, self.head)):
            self.cluster.end(process)
        self.head, self.nodes = None, []


def environment(address: str) -> dict[str, str]:
    """Return the environment of Ray's processes and of their children."""
    return {
        **({"GLOO_SOCKET_IFNAME": LOOPBACK} if address.startswith("127.") else {}),
        "TMPDIR": tempfile.gettempdir(),  # the trial's folder may have too long a path for sockets
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # trainoff limits the memory; Ray would restart workers unseen
        "RAY_enable_worker_prestart": "0",  # processes for tasks, of which there are none
        "RAY_prestart_worker_first_driver": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(READY_S),
    }


# Commands other than `start`, which take three quarters of the time to import `ray.scripts`.
OTHER_COMMANDS = ("ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")


def stay_on_loopback() -> None:
    """Make Ray keep the address 127.0.0.1 in this process."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def main() -> None:
    sys.modules.update(dict.fromkeys(OTHER_COMMANDS))  # type: ignore[arg-type]  # None: cannot be imported
    from ray.scripts import scripts

    # With this error no server for remote clients is started.
    scripts.get_ray_client_dependency_error = ImportError

    die_with_parent()
    if "127.0.0.1" in sys.argv:
        stay_on_loopback()
    scripts.start(sys.argv[1:])


if __name__ == "__main__":
    main()
