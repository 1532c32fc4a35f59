"""spark-torch: PyTorch on the executors, started and joined by Spark's TorchDistributor, over gloo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from trainoff.engines.contract import Job, Watch
from trainoff.engines.spark.base import SparkEngine
from trainoff.engines.torch.ddp_driver import READY_S, Followed

ROWS = "trainoff-rows"  # in the folder of an executor


class SparkTorch(Followed, SparkEngine):
    """The workers of the process group are started by Spark, one on each executor."""

    name = "spark-torch"
    about = "PyTorch on the executors by Spark's TorchDistributor, gradients summed over gloo"
    modules = (*SparkEngine.modules, "torch")
    on_executors = ("trainoff", "numpy", "torch", "pandas", "pyarrow")  # in processes that Spark sends no modules to
    properties: ClassVar[Mapping[str, str]] = {
        "spark.task.maxFailures": "1",  # a process group does not survive the loss of a member
        "spark.stage.maxConsecutiveAttempts": "1",
    }

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        with watch.phase("import"):
            from trainoff.engines.shared.control_channel import Driver
            from trainoff.engines.torch import network  # noqa: F401  # imports torch, for predict
        assert self.session
        self._aside, self._workers = ThreadPoolExecutor(1), self.session.executors
        with watch.phase("ship"):
            self._ship(job)
        with watch.phase("compile"):
            self._running: Future[Any] | None = None
            self.line = Driver(self.session.context.getConf().get("spark.driver.host"), self._check)
            self._running = self._aside.submit(self._distribute, job, watch)
            self.line.wait_for("ready", READY_S)

    def _ship(self, job: Job) -> None:
        """Send the rows to every executor, which leaves them in files for the processes of torch."""
        from trainoff.engines.shared.shipping import with_rows

        assert self.session
        sent = self.session.context.broadcast(with_rows(job))
        parts = self.session.context.parallelize(range(self._workers), self._workers).barrier()  # one on each executor
        with self.session.failures():
            parts.mapPartitions(partial(unpack, sent)).collect()
        sent.destroy()

    def _distribute(self, job: Job, watch: Watch) -> None:
        """Run the training on the executors; returns when it is over."""
        from pyspark.ml.torch.distributor import TorchDistributor

        from trainoff.engines.shared.shipping import without_rows
        from trainoff.engines.torch.ddp_worker import learn_together

        assert self.session
        self.session.sql  # noqa: B018  # TorchDistributor looks for it
        lean = replace(without_rows(job), cores=self.session.cores)
        distributor = TorchDistributor(num_processes=self._workers, local_mode=False, use_gpu=False)
        distributor.run(learn_together, self.line.number, lean, watch.pace, ROWS)

    def _check(self) -> None:
        """Raise what went wrong on the executors, if something did."""
        assert self.session
        if self._running and self._running.done():
            with self.session.failures():
                self._running.result()

    def train(self, job: Job, watch: Watch) -> None:
        assert self.session
        self.follow(job, watch, self._workers)
        self.session.tell(watch)


def unpack(sent: Any, parts: Iterator[int]) -> Iterator[int]:
    """Leave the rows in the executor's folder. Run by Spark on every executor."""
    from trainoff.engines.shared.shipping import arrived
    from trainoff.engines.torch.ddp_worker import leave_rows

    yield from parts
    leave_rows(arrived(sent.value), Path(ROWS))
