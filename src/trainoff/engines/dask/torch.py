"""dask-torch: PyTorch on Dask's workers. A task on each joins a process group, and they learn as those of torch-ddp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.engines.contract import Job, Knob, Watch, WorkerFailed
from trainoff.engines.dask.base import DaskEngine
from trainoff.engines.torch.ddp_driver import READY_S, Followed

if TYPE_CHECKING:
    from trainoff.engines.dask.worker_pool import Share
    from trainoff.engines.torch.ddp_driver import Assignment


class DaskTorch(Followed, DaskEngine):
    """The workers of the process group are tasks of Dask's, one on each worker."""

    name = "dask-torch"
    about = "PyTorch's DistributedDataParallel in tasks on Dask's workers, gradients averaged over gloo"
    modules = (*DaskEngine.modules, "torch")
    on_workers = (*DaskEngine.on_workers, "torch")
    knobs: ClassVar[Mapping[str, Knob]] = {
        **DaskEngine.knobs,
        "protocol": replace(DaskEngine.knobs["protocol"], about="how Dask's processes speak", choices=("tcp", "tls")),
    }

    def open(self, job: Job, watch: Watch) -> None:
        super().open(job, watch)
        from trainoff.engines.dask.worker_pool import lay_out
        from trainoff.engines.shared.control_channel import Driver

        with watch.phase("import"):
            from trainoff.engines.torch import network  # noqa: F401  # imports torch, for predict
        assert self.session
        self._tasks: list[Any] = []
        self.line = Driver(self._own_host(), self._check)
        with watch.phase("data_load"):
            shares = lay_out(job, apart=False)
        with watch.phase("cluster_start"):
            self._distribute(job, watch, shares)
            self.line.wait_for("connected", READY_S)
        with watch.phase("ship"):
            self.line.wait_for("shipped", READY_S)
        with watch.phase("compile"):
            self.line.wait_for("ready", READY_S)

    def _own_host(self) -> str:
        """The address from which this process speaks with the scheduler: there the workers can call it."""
        assert self.session
        return host_of(self.session.client.scheduler_comm.comm.local_address)

    def _distribute(self, job: Job, watch: Watch, shares: list[Share]) -> None:
        """Send every worker its task; they find each other at the first one's."""
        from trainoff.clusters.local import free_ports
        from trainoff.engines.shared.shipping import without_rows
        from trainoff.engines.torch.ddp_driver import Assignment

        assert self.session
        client, addresses = self.session.client, self.session.addresses
        host = host_of(addresses[0])
        ((port,),) = client.run(free_ports, [host], workers=addresses[:1]).values()
        given = Assignment(without_rows(job), self.line.number, watch.pace)
        for rank, address in enumerate(addresses):
            group = {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": job.workers}
            task = client.submit(learn, given, shares[rank], group, workers=[address], pure=False)
            self._tasks.append(task)

    def _check(self) -> None:
        """Raise what went wrong on the workers, if something did: a process group does not outlive a member."""
        assert self.session
        with self.session.failures():
            self.session.check()
        for rank, task in enumerate(self._tasks):
            if task.status == "error":
                with self.session.failures():
                    self.session.check(1.0)  # a death explains more than what the others say of it
                raise WorkerFailed(f"worker-{rank}", task.exception(timeout=5).args[0])

    def train(self, job: Job, watch: Watch) -> None:
        self.follow(job, watch, job.workers)


def host_of(address: str) -> str:
    """The host of an address of Dask's, such as tcp://host:port."""
    return address.split("://")[1].rsplit(":", 1)[0]


def learn(assignment: Assignment, share: Share, group: Mapping[str, Any]) -> None:
    """Be one worker of the process group, to the end. Run by Dask."""
    import os
    import traceback

    import torch.distributed as dist

    from trainoff.clusters.local import LOOPBACK
    from trainoff.engines.dask.worker_pool import load
    from trainoff.engines.shared.shipping import expand
    from trainoff.engines.torch import ddp_worker

    os.environ.update({name: str(value) for name, value in group.items()})
    if group["MASTER_ADDR"].startswith("127."):
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK

    def fetch(job: Job) -> Job:
        x, y = load(share)
        return replace(job, data=replace(job.data, x_train=expand(x), y_train=y))

    try:
        ddp_worker.join(assignment.job.cores)
        _, leader = ddp_worker.learn(assignment, fetch)
        if leader:
            leader.close()
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        raise RuntimeError(traceback.format_exc()) from None  # its traceback would be lost on the way
