"""The engines on Dask: dask-average, dask-sklearn and dask-torch.

The connection to a cluster is in `session`, the workers of local SGD and their rows in `worker_pool`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters.local import LOOPBACK, free_ports
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed, refuse_sparse_l2
from trainoff.engines.shared.control_channel import ControlServer, wait_until_ready
from trainoff.engines.shared.local_sgd import LocalSgdEngine, SklearnLocalSgdEngine
from trainoff.engines.shared.shipping import expand, without_rows
from trainoff.engines.shared.storage import needs_host_network, refuses_storage
from trainoff.engines.torch.ddp_driver import DdpAssignment, DdpDriver

if TYPE_CHECKING:
    from trainoff.engines.dask.session import DaskConnection
    from trainoff.engines.dask.worker_pool import WorkerRows
    from trainoff.study import Trial


class DaskEngine(Engine):
    """An engine on a Dask cluster. `open` connects `self.session`; a subclass does the rest."""

    package = "distributed"
    extra = "dask"
    cluster = "dask"
    modules: ClassVar[tuple[str, ...]] = ("dask", "distributed", "pyarrow")
    on_workers: ClassVar[tuple[str, ...]] = ("numpy", "pyarrow")  # what the Python of the workers must have
    knobs: ClassVar[Mapping[str, Knob]] = {
        "protocol": Knob(
            str,
            "tcp",
            "how the processes of the cluster communicate; inproc: not at all, they are threads of one process",
            choices=("tcp", "tls", "inproc"),
        ),
        "dashboard": Knob(bool, False, "whether Dask shows its dashboard while it trains"),
        "storage": Knob(
            str,
            None,
            "where the workers read the rows: a folder at file://, s3://, gs://, hdfs:// or another fsspec address; "
            "written there first if they are missing. By default in a folder of this machine",
        ),
    }
    session: DaskConnection

    def refuses(self, trial: Trial) -> str | None:
        if trial.attached and trial.params["protocol"] != "tcp":
            return "the protocol of an existing cluster is part of its address; leave `protocol` out"
        if trial.cluster == "hosts" and trial.params["protocol"] == "inproc":
            return "threads of one process cannot be spread over hosts; leave `protocol` out"
        if trial.params["dashboard"] and trial.params["protocol"] == "inproc":
            return "a cluster inside one process shows no dashboard; leave `dashboard` out"
        return refuses_storage(trial.params["storage"]) or refuse_sparse_l2(trial)

    def outside(self, trial: Trial) -> str | None:
        return needs_host_network(trial.params["storage"])

    def open(self, job: Job, watch: Watch) -> None:
        with watch.phase("import"):
            from trainoff.engines.dask.session import DaskConnection
        self.session = DaskConnection(job, watch)
        with watch.phase("cluster_start"), self.session.failures():
            self.session.start(self.on_workers)

    def close(self) -> None:
        if hasattr(self, "session"):
            self.session.stop()


class DaskLocalSgdEngine(LocalSgdEngine, DaskEngine):
    """Local SGD with an actor on every worker; the client averages the weights."""

    partitioned: ClassVar[bool] = False  # whether every worker has a part of the rows, instead of all
    knobs: ClassVar[Mapping[str, Knob]] = {**LocalSgdEngine.knobs, **DaskEngine.knobs}

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.dask.worker_pool import DaskWorkerPool

        partitioned = self.partitioned and job.mode != "search" and job.workers > 1
        with watch.phase("data_load"):
            self.pool = DaskWorkerPool(self.session, job, self.make_learner, partitioned=partitioned)
        if job.mode != "search":
            with watch.phase("ship"), self.session.failures():
                self.pool.start_actors()


class DaskAverage(DaskLocalSgdEngine):
    """Plain numpy on every worker."""

    name = "dask-average"
    about = "SparkNet's algorithm on Dask: tau local steps in numpy on every worker, then an average"


class DaskSklearn(SklearnLocalSgdEngine, DaskLocalSgdEngine):
    """MLPClassifier and SGDClassifier on every worker. The mode search is joblib's, which cannot spread one fit."""

    name = "dask-sklearn"
    about = "scikit-learn's MLPClassifier and SGDClassifier on every Dask worker's own rows, weights averaged"
    modules = (*DaskLocalSgdEngine.modules, "sklearn", "joblib")
    on_workers = (*DaskLocalSgdEngine.on_workers, "sklearn")
    knobs: ClassVar[Mapping[str, Knob]] = {**SklearnLocalSgdEngine.knobs, **DaskLocalSgdEngine.knobs}
    partitioned = True

    def differs(self, trial: Trial) -> str | None:
        if trial.mode != "search" and trial.workers > 1:
            return "every worker draws its batches from its own part of the rows"
        return super().differs(trial)


class DaskTorch(DdpDriver, DaskEngine):
    """The workers of the process group are Dask tasks, one on each worker."""

    name = "dask-torch"
    about = "PyTorch's DistributedDataParallel in tasks on Dask's workers, gradients averaged over gloo"
    modules = (*DaskEngine.modules, "torch")
    on_workers = (*DaskEngine.on_workers, "torch")
    knobs: ClassVar[Mapping[str, Knob]] = {
        **DaskEngine.knobs,
        "protocol": replace(
            DaskEngine.knobs["protocol"], about="how Dask's processes communicate", choices=("tcp", "tls")
        ),
    }

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.dask.worker_pool import store_rows

        with watch.phase("import"):
            from trainoff.engines.torch import network  # noqa: F401  # imports torch, for predict
        self._tasks: list[Any] = []
        # The address from which this process reaches the scheduler: there the workers can reach it.
        host = host_of(self.session.client.scheduler_comm.comm.local_address)
        self.server = ControlServer(host, self._check)
        with watch.phase("data_load"):
            shares = store_rows(job, partitioned=False)
        with watch.phase("cluster_start"):
            self._submit_tasks(job, watch, shares)
        wait_until_ready(watch, self.server.wait_for)

    def _submit_tasks(self, job: Job, watch: Watch, shares: list[WorkerRows]) -> None:
        """Submit a task to every worker; they meet at the first worker's address."""
        client, addresses = self.session.client, self.session.addresses
        host = host_of(addresses[0])
        ((port,),) = client.run(free_ports, [host], workers=addresses[:1]).values()
        assignment = DdpAssignment(without_rows(job), self.server.endpoint, watch.snapshot_schedule)
        for rank, address in enumerate(addresses):
            group = {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": job.workers}
            task = client.submit(run_worker, assignment, shares[rank], group, workers=[address], pure=False)
            self._tasks.append(task)

    def _check(self) -> None:
        """Raise the error of a worker that has failed: a process group does not survive the loss of a member."""
        with self.session.failures():
            self.session.check()
        for rank, task in enumerate(self._tasks):
            if task.status == "error":
                with self.session.failures():
                    self.session.check(1.0)  # a worker's death explains more than the errors of the others
                raise WorkerFailed(f"worker-{rank}", task.exception(timeout=5).args[0])

    def train(self, job: Job, watch: Watch) -> None:
        self.follow(job, watch, job.workers)


def host_of(address: str) -> str:
    """Return the host of a Dask address, such as tcp://host:port."""
    return address.split("://")[1].rsplit(":", 1)[0]


def run_worker(assignment: DdpAssignment, share: WorkerRows, group: Mapping[str, Any]) -> None:
    """Train as one worker of the process group. Run by Dask."""
    from trainoff.engines.dask.worker_pool import load
    from trainoff.engines.torch import ddp_worker

    os.environ.update({name: str(value) for name, value in group.items()})
    if group["MASTER_ADDR"].startswith("127."):
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK

    def fetch(job: Job) -> Job:
        x, y = load(share)
        return replace(job, data=replace(job.data, x_train=expand(x), y_train=y))

    try:
        ddp_worker.join(assignment.job.cores)
        ddp_worker.work(assignment, fetch, serve=False)
    except Exception:
        raise RuntimeError(traceback.format_exc()) from None  # Dask would not send the traceback
