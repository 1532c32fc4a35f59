"""ray-torch: PyTorch's DistributedDataParallel on a Ray cluster, started and restarted by Ray Train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters import Attached
from trainoff.clusters.local import free_ports
from trainoff.clusters.ray import RayCluster
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed, families, refuse_stop
from trainoff.engines.shared.control_channel import wait_until_ready
from trainoff.engines.shared.recovery import CHECKPOINT, MAX_RESTARTS, CheckpointWriter, Recovery, settle_checkpoints
from trainoff.engines.shared.shipping import without_rows
from trainoff.engines.torch.ddp_driver import DdpAssignment
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial

END_S = 10.0  # how long Ray Train may take to end after its workers
LEAST_STORE = 80 * 2**20  # bytes that Ray itself needs


class RayTorch(Engine):
    """Data-parallel PyTorch by Ray Train's TorchTrainer, one Ray worker on every node."""

    name = "ray-torch"
    about = "PyTorch's DistributedDataParallel on Ray's workers by Ray Train, gradients averaged over gloo"
    models = families("Network")
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
        return refuse_stop(trial)

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.engines.ray import session
        self._job = job
        self._fit: RayFit | None = None
        self._cluster: RayCluster | None = None
        self._replaced = 0
        with watch.phase("cluster_start"):
            self._connect(job, watch)
        with watch.phase("ship"):
            sent = session.ship(job)
        with watch.phase("cluster_start"):
            every = job.params["checkpoint_every"] if self._cluster else 0  # an existing cluster may share no files
            checkpoints = CheckpointWriter(job.folder / "checkpoint.npz", every)
            self._recovery = Recovery(job, watch, session.host(), checkpoints, self._check, self._restart)
            endpoint, schedule = self._recovery.server.endpoint, watch.snapshot_schedule
            config = {"assignment": DdpAssignment(without_rows(job), endpoint, schedule, checkpoints), "sent": sent}
            self._fit = RayFit(session.trainer(job, config, MAX_RESTARTS).fit)
        wait_until_ready(watch, self._recovery.wait_for)

    def _connect(self, job: Job, watch: Watch) -> None:
        """Connect to the attached cluster, or start one."""
        from trainoff.engines.ray import session

        if isinstance(job.cluster, Attached):
            session.connect_to(job.cluster.address)
            return
        address = job.cluster.driver_node.address
        port, dashboard_port = free_ports([address] * 2)
        store = LEAST_STORE + 2 * int(job.data.x_train.nbytes + job.data.y_train.nbytes)  # no more bytes are sent
        dashboard = dashboard_port if job.params["dashboard"] else None
        self._cluster = RayCluster(job.cluster, job.folder, port, ceil(job.cores), store, dashboard)
        self._cluster.start()
        session.connect(self._cluster.address)
        if dashboard:
            watch.page("ray", address, dashboard)

    def _check(self) -> None:
        """Raise if Ray Train has given up or the head is lost; replace lost nodes."""
        if self._cluster:
            if not self._cluster.alive:
                raise WorkerFailed("head", "the head of the Ray cluster is gone")
            self._replaced += self._cluster.replace_nodes(running=False)
            if self._replaced > MAX_RESTARTS * self._job.workers:
                raise TrainoffError(f"Ray's nodes were lost {self._replaced} times; the cluster cannot be kept alive")
        if self._fit:
            self._fit.check()

    def _restart(self) -> None:
        """Restart all nodes, for workers that are stuck: Ray sees that they live, and would wait."""
        if not self._cluster:
            raise TrainoffError("no step is made any more, and nodes of an existing cluster are not restarted")
        self._cluster.replace_nodes(running=True)

    def train(self, job: Job, watch: Watch) -> None:
        self._recovery.run()
        if self._replaced:
            watch.count("nodes_replaced", self._replaced)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        import numpy as np

        classes: NDArray[np.int64] = self._recovery.server.request(np.asarray(x))
        return classes

    def close(self) -> None:
        if hasattr(self, "_recovery"):
            self._recovery.server.close()
            if self._fit and self._recovery.finished:
                self._fit.join(END_S)
        if hasattr(self, "_cluster"):
            from trainoff.engines.ray import session

            session.disconnect(alive=not self._cluster or self._cluster.alive)
            if self._cluster:
                self._cluster.stop()


class RayFit(threading.Thread):
    """Ray Train in a daemon thread, which does not delay the end of the trial."""

    def __init__(self, fit: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._fit = fit
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._fit()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of the worker that failed first, if Ray Train has kept it, else Ray Train's, if any."""
        from trainoff.engines.torch.ddp_worker import is_lost_peer

        if not self._error:
            return
        failures: Mapping[int, Exception] = getattr(self._error, "worker_failures", {})
        if not failures:
            raise self._error
        rank, failure = min(failures.items(), key=lambda each: (is_lost_peer(each[1]), each[0]))
        raise WorkerFailed(f"worker-{rank}", str(failure), str(self._error))
