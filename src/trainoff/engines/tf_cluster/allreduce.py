"""tf-allreduce: TensorFlow's MultiWorkerMirroredStrategy, one process per worker, gradients summed around a ring."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from trainoff.clusters.local import free_ports
from trainoff.engines.contract import Job, Knob
from trainoff.engines.shared.recovery import CHECKPOINT, settle_checkpoints
from trainoff.engines.tf_cluster.engine import TfClusterEngine

PROGRAM = "trainoff.engines.tf_cluster.allreduce_worker"


class TfAllReduce(TfClusterEngine):
    """Data-parallel TensorFlow: every step's gradients are summed over all workers."""

    name = "tf-allreduce"
    about = "TensorFlow's MultiWorkerMirroredStrategy: a process per worker, gradients summed around a ring"
    modes = ("sync",)
    leader = "worker-0"
    knobs: ClassVar[Mapping[str, Knob]] = {"checkpoint_every": CHECKPOINT}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return settle_checkpoints(values)

    def start(self, job: Job) -> None:
        hosts = [job.cluster.place(number).address for number in range(job.workers)]
        ports = free_ports(hosts)
        path = self.assignment({"worker": [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]})
        for number in range(job.workers):
            self.spawn(number, [sys.executable, "-m", PROGRAM, str(path), str(number)], f"worker-{number}")
