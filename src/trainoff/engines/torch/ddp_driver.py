"""The driver of spark-torch and dask-torch, and the assignment of a worker of any torch process group.

torch-ddp and ray-torch use the assignment alone: their workers can be restarted, so they train through `Recovery`. The
assignment is not in `ddp_worker` because that imports torch, which the driver of torch-ddp never loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.engines.contract import Engine, Job, Watch, families, refuse_stop
from trainoff.engines.shared.recovery import CheckpointWriter
from trainoff.engines.shared.shipping import allreduce_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.engines.shared.control_channel import ControlServer, Endpoint
    from trainoff.engines.shared.snapshots import SnapshotSchedule
    from trainoff.study import Trial


class DdpDriver(Engine):
    """Data-parallel PyTorch in the tasks of Spark or Dask: the loss of a worker ends the training."""

    models = families("Network")
    modes = ("sync",)
    server: ControlServer  # for rank 0

    def refuses(self, trial: Trial) -> str | None:
        return refuse_stop(trial) or super().refuses(trial)

    def follow(self, job: Job, watch: Watch, workers: int) -> None:
        """Start the training, follow it to the end, and record what the workers report."""
        weights, _ = self.server.follow(job, watch)
        self._trained = replace(job, weights=weights)
        watch.count("rounds", job.order.steps)
        watch.count("least_bytes_per_round", allreduce_bytes(job, workers))

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        from trainoff.engines.torch import predict
        from trainoff.engines.torch.network import TorchNetwork

        return predict(TorchNetwork(self._trained, "cpu"), x, "cpu")

    def close(self) -> None:
        if hasattr(self, "server"):
            self.server.close()
        super().close()


@dataclass(frozen=True)
class DdpAssignment:
    """A worker's job, the driver's endpoint, when snapshots are due, and where checkpoints are kept."""

    job: Job
    endpoint: Endpoint
    snapshot_schedule: SnapshotSchedule
    checkpoints: CheckpointWriter = field(default_factory=lambda: CheckpointWriter(Path(), 0))  # writes none
