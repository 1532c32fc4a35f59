"""torch-ddp: PyTorch's DistributedDataParallel, started and restarted by torchrun."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters.local import LOOPBACK
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed, families, refuse_stop
from trainoff.engines.shared.local_sgd import TAU, differs
from trainoff.engines.shared.recovery import (
    CHECKPOINT,
    MAX_RESTARTS,
    CheckpointWriter,
    Recovery,
    RestartRequired,
    settle_checkpoints,
)
from trainoff.engines.shared.shipping import in_file, to_files
from trainoff.engines.torch import Torch
from trainoff.engines.torch.ddp_driver import DdpAssignment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.clusters import Node, Process
    from trainoff.data import Matrix
    from trainoff.study import Trial

END_S = 5.0  # how long torchrun may take to end after its workers


class TorchDdp(Engine):
    """PyTorch on several processes, joined by torchrun."""

    name = "torch-ddp"
    about = "PyTorch's DistributedDataParallel by torchrun: a process per worker, gradients averaged over gloo"
    models = families("Network")
    modes: ClassVar[tuple[str, ...]] = ("sync", "local")
    package = Torch.package
    extra = Torch.extra
    modules = Torch.modules
    knobs: ClassVar[Mapping[str, Knob]] = {"tau": TAU, "checkpoint_every": CHECKPOINT}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return settle_checkpoints({**values, "tau": 1} if values["mode"] == "sync" else values)

    def differs(self, trial: Trial) -> str | None:
        return differs(trial, trial.workers) if trial.mode == "local" else None

    def refuses(self, trial: Trial) -> str | None:
        return refuse_stop(trial)

    def open(self, job: Job, watch: Watch) -> None:
        self._job = job
        self._agents: list[Process] = []
        checkpoints = CheckpointWriter(job.folder / "checkpoint.npz", job.params["checkpoint_every"])
        self._recovery = Recovery(job, watch, job.cluster.driver_node.address, checkpoints, self._check, self._restart)
        with watch.phase("ship"):
            self._assignment = job.folder / "assignment"
            self._assignment.touch(mode=0o600)  # it holds the control channel's secret
            schedule = watch.snapshot_schedule
            assignment = DdpAssignment(to_files(job), self._recovery.server.endpoint, schedule, checkpoints)
            self._assignment.write_bytes(pickle.dumps(assignment))
        with watch.phase("cluster_start"):
            self._agents = start_agents(job, self._assignment, MAX_RESTARTS)
            self._recovery.wait_for("connected")
        with watch.phase("compile"):
            self._recovery.wait_for("ready")

    def _check(self) -> None:
        """Raise if torchrun has given up, and RestartRequired if one of several machines is lost."""
        for agent in self._agents:
            if len(self._agents) > 1 and agent.killed_by == "SIGKILL":
                raise RestartRequired(f"{agent.role} was killed")
            if agent.exit_code not in (None, 0):
                ended = f"torchrun was killed by {agent.killed_by}" if agent.killed_by else ""
                raise WorkerFailed(agent.role, f"{agent.tail()}\n{ended}".strip(), agent.tail())

    def _restart(self) -> None:
        """Restart torchrun with all workers, as it does not do itself for stuck workers or a lost machine.

        When a worker has died torchrun restarts them, and this is not called.
        """
        self._stop()
        self._agents = start_agents(self._job, self._assignment, MAX_RESTARTS)

    def train(self, job: Job, watch: Watch) -> None:
        self._recovery.run()

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        classes: NDArray[np.int64] = self._recovery.server.request(in_file(x, self._job.folder, "x_predict"))
        return classes

    def close(self) -> None:
        if not hasattr(self, "_recovery"):
            return
        self._recovery.server.close()
        for agent in self._agents if self._recovery.finished else []:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(END_S)
        self._stop()

    def _stop(self) -> None:
        """Stop torchrun, and its workers with it."""
        for agent in self._agents:
            self._job.cluster.end(agent)
        self._agents = []


AGENT = "trainoff.engines.torch_ddp.agent"
WORKER = "trainoff.engines.torch_ddp.worker"
PORT = 29400  # of the rendezvous of several agents, torch's default; one agent takes any port

# Every worker has its own role and log from the start of its process.
LAUNCH = 'export TRAINOFF_ROLE=worker-$RANK; exec "$@" >> "$0/worker-$RANK.txt" 2>&1'


def start_agents(job: Job, assignment: Path, restarts: int) -> list[Process]:
    """Start one agent for all nodes with the same address, with a worker for each node."""
    machines: dict[str, list[Node]] = {}
    for number in range(job.workers):
        node = job.cluster.place(number)
        machines.setdefault(node.address, []).append(node)
    rendezvous = f"{next(iter(machines))}:{0 if len(machines) == 1 else PORT}"
    program = ["sh", "-c", LAUNCH, str(job.folder / "logs"), sys.executable, "-m", WORKER, str(assignment)]
    agents = []
    for number, (address, nodes) in enumerate(machines.items()):
        size = ["--nnodes", str(len(machines)), "--nproc-per-node", str(len(nodes))]
        join = ["--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous, "--local-addr", address]
        join += ["--rdzv-conf", f"is_host={int(number == 0)}"]  # torch would guess by the machine's name
        options = ["--max-restarts", str(restarts), "--monitor-interval", "0.1", "--no-python"]
        argv = [sys.executable, "-m", AGENT, *size, *join, *options, *program]
        role = "agent" if len(machines) == 1 else f"agent-{number}"
        agents.append(job.cluster.spawn(nodes[0], argv, environment(address), role))
    return agents


def environment(address: str) -> dict[str, str]:
    """Return the environment of torchrun and its workers on a machine."""
    return {
        **({"GLOO_SOCKET_IFNAME": LOOPBACK} if address.startswith("127.") else {}),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",  # seconds; workers whose group is lost have nothing to finish
        # Otherwise restarted workers read the addresses of their predecessors from torchrun's store, and wait for them.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
