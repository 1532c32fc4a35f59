"""What engines do alike whose process group of torch runs in tasks of another system: follow it, label at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainoff.engines.contract import Engine, Job, Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.engines.line import Driver
    from trainoff.study import Trial

READY_S = 300.0  # every process imports torch, and several may share a core


class Followed(Engine):
    """Data-parallel PyTorch: every step's gradients are averaged over all workers."""

    models = frozenset({"mlp", "cnn"})
    modes = ("sync",)
    line: Driver  # to the worker that leads

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["stop"]:
            return f"{self.name} makes every step of its epochs; leave `stop` out"
        return super().refuses(trial)

    def follow(self, job: Job, watch: Watch, workers: int) -> None:
        """Give the sign to start, and pass on what the workers tell, to the end."""
        from trainoff.engines.shipping import WEIGHT_BYTES

        weights, report = self.line.follow(job, watch)
        self._trained = replace(job, weights=weights)
        watch.count("rounds", job.order.steps)
        # Around a ring, every worker but one passes each number on, once to sum it up and once to tell the sum.
        watch.count("least_bytes_per_round", 2 * (workers - 1) * WEIGHT_BYTES * job.model.parameters)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        from trainoff.engines.torch import predict
        from trainoff.engines.torch.network import Network

        return predict(Network(self._trained, "cpu"), x, "cpu")

    def close(self) -> None:
        if hasattr(self, "line"):
            self.line.close()
        super().close()
