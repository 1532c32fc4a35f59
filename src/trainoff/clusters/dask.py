"""A Dask cluster: a scheduler and workers, started as processes of a cluster.

The workers have no nannies: trainoff limits the memory and the engine restarts workers, so that both are recorded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainoff.clusters.local import Cluster, Process, crowded, free_ports

READY_S = 300.0
SETTINGS = {  # Dask would spill, pause or end a worker short of memory; a trial ends when it is used up
    **{f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL", "PAUSE", "TERMINATE")},
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DASK_LOGGING__DISTRIBUTED": "info",  # log lines show when a process is ready
}


@dataclass
class DaskCluster:
    """The processes of a Dask cluster."""

    cluster: Cluster
    folder: Path
    threads: int  # of every worker
    protocol: str = "tcp"
    tls_options: Sequence[str] = ()
    dashboard: bool = False

    def start(self) -> str:
        """Start a scheduler and a worker on every node; return the scheduler's address when all have joined."""
        first = self.cluster.nodes[0]
        (port,) = free_ports([first.address])
        self.address = f"{self.protocol}://{first.address}:{port}"
        shown = ["--dashboard" if self.dashboard else "--no-dashboard", "--dashboard-address", f"{first.address}:0"]
        listen = ["--host", first.address, "--port", str(port), "--protocol", self.protocol]
        argv = [sys.executable, "-m", "distributed.cli.dask_scheduler", *listen, *shown, *self.tls_options]
        self.scheduler = self.cluster.spawn(first, argv, self._environment(), "scheduler")
        self.workers = [self.start_worker(number) for number in range(len(self.cluster.nodes))]
        self.scheduler.wait_ready(lambda each: each.says("Scheduler at:"), READY_S)
        for worker in self.workers:
            self.wait_for(worker)
        return self.address

    def start_worker(self, number: int) -> Process:
        """Start the worker of a node; `wait_for` waits until it has joined."""
        node, role = self.cluster.place(number), f"worker-{number}"
        offer = ["--host", node.address, "--nthreads", str(self.threads), "--memory-limit", "0"]
        # Dask opens a port for its pages in any case; keep it on this address.
        local = ["--no-nanny", "--no-dashboard", "--dashboard-address", f"{node.address}:0"]
        local += ["--local-directory", str(self.folder / "dask")]
        argv = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, *offer, *local, *self.tls_options]
        return self.cluster.spawn(node, argv, self._environment(), role)

    def wait_for(self, worker: Process) -> str:
        """Wait until a worker has joined; return its address from its log, for its role may be a dead worker's, too."""
        worker.wait_ready(lambda each: each.says("Registered to:"), crowded(READY_S, len(self.cluster.nodes)))
        found = re.search(r"Start worker at:\s+(\S+)", worker.log_text())
        assert found
        return found[1]

    def dashboard_port(self) -> int | None:
        """Return the port of the scheduler's dashboard, if it has one."""
        found = re.search(r"dashboard at:\s+http://[^:]+:(\d+)", self.scheduler.log_text())
        return int(found[1]) if found else None

    def _environment(self) -> dict[str, str]:
        folder = str(self.folder / "dask")
        return {**SETTINGS, "DASK_TEMPORARY_DIRECTORY": folder, "DASK_CONFIG": folder}
