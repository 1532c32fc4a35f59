"""spark-torch: PyTorch on the executors, started and joined by Spark's TorchDistributor, over gloo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.engines.contract import Job, Watch
from trainoff.engines.spark.base import SparkEngine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial

READY_S = 300.0  # every process imports torch, and several may share a core
ROWS = "trainoff-rows"  # in the folder of an executor


class SparkTorch(SparkEngine):
    """Data-parallel PyTorch: every step's gradients are summed over all workers."""

    name = "spark-torch"
    about = "PyTorch on the executors by Spark's TorchDistributor, gradients summed over gloo"
    models = frozenset({"mlp", "cnn"})
    modes = ("sync",)
    modules = (*SparkEngine.modules, "torch")
    on_executors = ("trainoff", "numpy", "torch", "pandas", "pyarrow")  # in processes that Spark sends no modules to
    properties: ClassVar[Mapping[str, str]] = {
        "spark.task.maxFailures": "1",  # a process group does not survive the loss of a member
        "spark.stage.maxConsecutiveAttempts": "1",
    }

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["stop"]:
            return "spark-torch makes every step of its epochs; leave `stop` out"
        return super().refuses(trial)

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        with watch.phase("import"):
            from trainoff.engines.line import Driver
            from trainoff.engines.torch import network  # noqa: F401  # imports torch, for predict
        assert self.session
        self._aside, self._workers = ThreadPoolExecutor(1), self.session.executors
        with watch.phase("ship"):
            self._ship(job)
        with watch.phase("compile"):
            self._running: Future[Any] | None = None
            self._line = Driver(self.session.context.getConf().get("spark.driver.host"), self._check)
            self._running = self._aside.submit(self._distribute, job, watch)
            self._line.wait_for("ready", READY_S)

    def _ship(self, job: Job) -> None:
        """Send the rows to every executor, which leaves them in files for the processes of torch."""
        from trainoff.engines.shipping import with_rows

        assert self.session
        sent = self.session.context.broadcast(with_rows(job))
        parts = self.session.context.parallelize(range(self._workers), self._workers).barrier()  # one on each executor
        with self.session.failures():
            parts.mapPartitions(partial(unpack, sent)).collect()
        sent.destroy()

    def _distribute(self, job: Job, watch: Watch) -> None:
        """Run the training on the executors; returns when it is over."""
        from pyspark.ml.torch.distributor import TorchDistributor

        from trainoff.engines.shipping import without_rows
        from trainoff.engines.torch.together import learn_together

        assert self.session
        self.session.sql  # noqa: B018  # TorchDistributor looks for it
        lean = replace(without_rows(job), cores=self.session.cores)
        distributor = TorchDistributor(num_processes=self._workers, local_mode=False, use_gpu=False)
        distributor.run(learn_together, self._line.number, lean, watch.pace, ROWS)

    def _check(self) -> None:
        """Raise what went wrong on the executors, if something did."""
        assert self.session
        if self._running and self._running.done():
            with self.session.failures():
                self._running.result()

    def train(self, job: Job, watch: Watch) -> None:
        from trainoff.engines.rounds.drive import WEIGHT_BYTES

        assert self.session
        weights, _ = self._line.follow(job, watch)
        self._trained = job, weights
        watch.count("rounds", job.order.steps)
        # Around a ring, every worker but one passes each number on, once to sum it up and once to tell the sum.
        watch.count("least_bytes_per_round", 2 * (self._workers - 1) * WEIGHT_BYTES * job.model.parameters)
        self.session.tell(watch)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        from trainoff.engines.torch import predict
        from trainoff.engines.torch.network import Network

        job, weights = self._trained
        return predict(Network(replace(job, weights=weights), "cpu"), x, "cpu")

    def close(self) -> None:
        if hasattr(self, "_line"):
            self._line.close()
        super().close()


def unpack(sent: Any, parts: Iterator[int]) -> Iterator[int]:
    """Leave the rows in the executor's folder. Run by Spark on every executor."""
    from trainoff.engines.shipping import arrived
    from trainoff.engines.torch.together import leave_rows

    yield from parts
    leave_rows(arrived(sent.value), Path(ROWS))
