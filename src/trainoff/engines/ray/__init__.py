"""ray-torch: PyTorch's DistributedDataParallel on a Ray cluster, started, joined and restarted by Ray Train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters import Attached
from trainoff.clusters.local import free_ports
from trainoff.clusters.ray import RayCluster
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed
from trainoff.engines.shared.recovery import CHECKPOINT, CheckpointWriter, Recovery, settle_checkpoints
from trainoff.engines.shared.shipping import without_rows
from trainoff.engines.torch.ddp_driver import DdpAssignment
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial


RESTARTS = 3  # of all workers, by Ray Train
END_S = 10.0  # how long Ray Train may take to end when its workers have
LEAST_STORE = 80 * 2**20  # bytes; Ray wants some for itself


class RayTorch(Engine):
    """Data-parallel PyTorch by Ray Train's TorchTrainer, one Ray worker on every node."""

    name = "ray-torch"
    about = "PyTorch's DistributedDataParallel on Ray's workers by Ray Train, gradients averaged over gloo"
    models = frozenset({"mlp", "cnn"})
    modes = ("sync",)
    package = "ray"
    extra = "ray"
    cluster = "ray"
    trainer = "ray::RayTrainWorker"
    modules = ("ray", "torch")
    knobs: ClassVar[Mapping[str, Knob]] = {
        "checkpoint_every": CHECKPOINT,
        "dashboard": Knob(bool, False, "whether to start Ray's dashboard, to look at while it trains"),
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return settle_checkpoints(values)

    def refuses(self, trial: Trial) -> str | None:
        if trial.attached and trial.params["dashboard"]:
            return "an existing Ray cluster has its own dashboard or none; leave `dashboard` out"
        return self.refuses_stop(trial)

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.engines.ray import session
        self._job = job
        self._fit: RayFit | None = None
        self._own: RayCluster | None = None
        self._replaced = 0
        with watch.phase("cluster_start"):
            self._connect(job, watch)
        with watch.phase("ship"):
            sent = session.ship(job)
        with watch.phase("cluster_start"):
            every = job.params["checkpoint_every"] if self._own else 0  # others' machines have other files
            checkpoints = CheckpointWriter(job.folder / "checkpoint.npz", every)
            self._recovery = Recovery(job, watch, session.host(), checkpoints, self._check, self._restart)
            given = DdpAssignment(without_rows(job), self._recovery.endpoint, watch.snapshot_schedule, checkpoints)
            self._fit = RayFit(session.trainer(job, {"assignment": given, "sent": sent}, RESTARTS).fit)
            self._recovery.wait_for("connected")
        with watch.phase("ship"):
            self._recovery.wait_for("shipped")
        with watch.phase("compile"):
            self._recovery.wait_for("ready")

    def _connect(self, job: Job, watch: Watch) -> None:
        """Connect to the cluster that is named, or start one."""
        from trainoff.engines.ray import session

        if isinstance(job.cluster, Attached):
            session.connect_to(job.cluster.address)
            return
        here = job.cluster.driver_node.address
        port, page = free_ports([here] * 2)
        store = LEAST_STORE + 2 * session.bytes_of(job)
        shown = page if job.params["dashboard"] else None
        self._own = RayCluster(job.cluster, job.folder, port, ceil(job.cores), store, shown)
        self._own.start()
        session.connect(self._own.address)
        if shown:
            watch.page("ray", here, shown)

    def _check(self) -> None:
        """Raise if Ray Train has given up or the head is gone; a node that is lost is started anew."""
        if self._own:
            if not self._own.lives:
                raise WorkerFailed("head", "the head of the Ray cluster is gone")
            self._replaced += self._own.replace_lost()
            if self._replaced > RESTARTS * self._job.workers:
                raise TrainoffError(f"Ray's nodes were lost {self._replaced} times; the cluster cannot be kept alive")
        if self._fit:
            self._fit.check()

    def _restart(self) -> None:
        """Begin again: Ray sees that all workers live, and would wait."""
        if not self._own:
            raise TrainoffError("no step is made any more, and a cluster of others is not touched")
        self._own.replace_all()

    def train(self, job: Job, watch: Watch) -> None:
        self._recovery.run()
        if self._replaced:
            watch.count("nodes_replaced", self._replaced)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        import numpy as np

        found: NDArray[np.int64] = self._recovery.request(np.asarray(x))
        return found

    def close(self) -> None:
        if hasattr(self, "_recovery"):
            self._recovery.close()
            if self._fit and self._recovery.finished:
                self._fit.wait(END_S)
        if hasattr(self, "_own"):
            from trainoff.engines.ray import session

            session.disconnect(alive=not self._own or self._own.lives)
            if self._own:
                self._own.stop()


class RayFit:
    """Ray Train at work, aside; nobody waits for it when the trial ends."""

    def __init__(self, fit: Callable[[], object]) -> None:
        self._fit = fit
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._fit()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what went wrong, if something did."""
        if self._error:
            raise explain(self._error)

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)


def explain(error: BaseException) -> BaseException:
    """The words of a worker that failed by itself, or else of any, where Ray Train has kept them."""
    from trainoff.engines.torch.ddp_worker import of_others

    failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    for rank, failure in sorted(failures.items(), key=lambda each: (of_others(each[1]), each[0])):
        return WorkerFailed(f"worker-{rank}", str(failure), str(error))
    return error
