"""Starts torchrun: one agent on every machine, which starts the workers there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.clusters.local import LOOPBACK

if TYPE_CHECKING:
    from trainoff.clusters import Node, Process
    from trainoff.engines.contract import Job

AGENT = "trainoff.engines.torch_ddp.agent"
WORKER = "trainoff.engines.torch_ddp.worker"
PORT = 29400  # torch's own choice for the agents' meeting; where there is only one, any port will do

# A worker is booked on a role of its own, which its process must have from its start, and so is its log.
LAUNCH = 'export TRAINOFF_ROLE=worker-$RANK; exec "$@" >> "$0/worker-$RANK.txt" 2>&1'


def start_agents(job: Job, assignment: Path, restarts: int) -> list[Process]:
    """Start an agent for all nodes that have the same address, with a worker for each of them."""
    machines: dict[str, list[Node]] = {}
    for number in range(job.workers):
        node = job.cluster.place(number)
        machines.setdefault(node.address, []).append(node)
    meeting = f"{next(iter(machines))}:{0 if len(machines) == 1 else PORT}"
    program = ["sh", "-c", LAUNCH, str(job.folder / "logs"), sys.executable, "-m", WORKER, str(assignment)]
    agents = []
    for number, (address, nodes) in enumerate(machines.items()):
        size = ["--nnodes", str(len(machines)), "--nproc-per-node", str(len(nodes))]
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--local-addr", address]
        where += ["--rdzv-conf", f"is_host={int(number == 0)}"]  # torch would guess by the machine's name
        again = ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
        argv = [sys.executable, "-m", AGENT, *size, *where, *again, "--no-python", *program]
        role = "agent" if len(machines) == 1 else f"agent-{number}"
        agents.append(job.cluster.spawn(nodes[0], argv, environment(address), role))
    return agents


def environment(address: str) -> dict[str, str]:
    """What torch is told on a machine."""
    return {
        **({"GLOO_SOCKET_IFNAME": LOOPBACK} if address.startswith("127.") else {}),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",  # seconds; workers whose group is lost have nothing to say
        # Else restarted workers find in torchrun's store the addresses of those before them, and wait for them.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
