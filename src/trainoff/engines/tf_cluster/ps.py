"""tf-ps: TensorFlow with parameter servers; workers that pull and push, and a coordinator that leads them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters.local import crowded, free_ports
from trainoff.engines.contract import Job, Knob
from trainoff.engines.shared.recovery import CHECKPOINT, settle_checkpoints
from trainoff.engines.shared.shipping import compact
from trainoff.engines.tf_cluster.engine import READY_S, TfClusterEngine
from trainoff.engines.tf_cluster.serve import LISTENING

if TYPE_CHECKING:
    from trainoff.clusters import Process
    from trainoff.study import Trial

SERVER = "trainoff.engines.tf_cluster.serve"
COORDINATOR = "trainoff.engines.tf_cluster.coordinator"
OF_MODE = {"max_staleness": "async", "staleness_aware": "async", "backup_workers": "sync"}


class TfPs(TfClusterEngine):
    """The weights lie on servers; each worker pulls them, computes, and pushes what is to change."""

    name = "tf-ps"
    about = "TensorFlow with parameter servers: asynchronous, synchronous, or layers on different workers"
    modes = ("async", "sync", "model-parallel")
    leader = "coordinator"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "ps": Knob(int, 1, "how many parameter servers hold the weights", minimum=1),
        "max_staleness": Knob(
            int,
            None,
            "async: how many updates a gradient may have missed at most; no bound by default",
            minimum=0,
        ),
        "staleness_aware": Knob(bool, False, "async: whether the rate is divided by 1 + the updates a gradient missed"),
        "backup_workers": Knob(int, 0, "sync: how many of the slowest workers are left out of every step", minimum=0),
        "checkpoint_every": CHECKPOINT,
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """What belongs to another mode is as if it had not been said."""
        idle = {name for name, mode in OF_MODE.items() if mode != values["mode"]}
        return settle_checkpoints({**values, **{name: self.knobs[name].default for name in idle}})

    def vital(self, mode: str) -> tuple[str, ...]:
        return ("ps", "coordinator") if mode == "async" else super().vital(mode)

    def luggage(self, job: Job) -> Job:
        """Every worker holds all rows: pictures as bytes, which is a quarter of them as floats."""
        return job if job.data.sparse else replace(job, data=replace(job.data, x_train=compact(job.data.x_train)))

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["backup_workers"] >= trial.workers:
            return f"backup_workers = {trial.params['backup_workers']} leaves none of {trial.workers} workers"
        if trial.mode == "model-parallel" and trial.model == "logreg":
            return "logistic regression is one layer with one output, so there is nothing to lay on several workers"
        if trial.mode == "model-parallel" and (refused := refuses_division(trial)):
            return refused
        return super().refuses(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.mode == "async" and trial.workers > 1:
            return "each worker's gradient is of weights that others may have changed meanwhile"
        if trial.params["backup_workers"]:
            return f"the slowest {trial.params['backup_workers']} of the workers are left out of every step"
        return None

    def start(self, job: Job) -> None:
        nodes = len(job.cluster.nodes)
        workers = [self._serve("worker", number, number, job) for number in range(job.workers)]
        servers = [self._serve("ps", number, number % nodes, job) for number in range(job.params["ps"])]
        addresses = {kind: [*map(self._address, each)] for kind, each in (("worker", workers), ("ps", servers))}
        host = job.cluster.nodes[0].address
        addresses["chief"] = [f"{host}:{free_ports([host])[0]}"]
        self.spawn(0, [sys.executable, "-m", COORDINATOR, str(self.assignment(addresses))], "coordinator")

    def _serve(self, kind: str, number: int, node: int, job: Job) -> tuple[str, Process]:
        threads = ceil(job.cores)
        host = job.cluster.place(node).address
        argv = [sys.executable, "-m", SERVER, kind, str(number), str(threads), host]
        return host, self.spawn(node, argv, f"{kind}-{number}")

    def _address(self, server: tuple[str, Process]) -> str:
        """Where a server listens, once it does."""
        host, process = server
        process.wait_ready(lambda each: each.says(LISTENING), crowded(READY_S, self._job.workers))
        return f"{host}:{process.said().rpartition(LISTENING)[2].split()[0]}"


def refuses_division(trial: Trial) -> str | None:
    """Why a network cannot be laid on so many workers, or None."""
    if trial.workers > sum(trial.params["hidden"]):
        return f"{trial.workers} workers are more than the network has outputs to divide"
    return None
