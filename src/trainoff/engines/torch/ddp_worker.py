"""A worker of a torch process group: it takes its share of every batch and synchronises gradients or weights.

It is the same whichever system starts the processes. Rank 0 reports to the driver.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trainoff.data.batch_order import share, spans
from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import ControlClient, Endpoint, report_failure
from trainoff.engines.shared.shipping import InFile
from trainoff.engines.shared.snapshots import SnapshotSchedule
from trainoff.engines.shared.watch import seconds_by_worker
from trainoff.engines.torch import predict, warm_up
from trainoff.engines.torch.ddp_driver import DdpAssignment
from trainoff.engines.torch.network import Batch, DenseRows, TorchNetwork, on_device

JOIN_S = 120
Fetch = Callable[[Job], Job]
NETWORK_ERRORS = ("gloo", "connection", "store", "socket")  # in torch's message when it cannot reach a worker


def join(cores: float) -> None:
    """Join the process group that the environment names, to compute with this number of cores."""
    torch.set_num_threads(ceil(cores))
    dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_S))


def work(assignment: DdpAssignment, fetch: Fetch, *, serve: bool = True) -> None:
    """Train to the end; if `serve` is set, rank 0 then predicts for the driver until it disconnects."""
    network, control = train(assignment, fetch)
    dist.barrier()
    dist.destroy_process_group()
    if control and serve:
        control.serve_requests(lambda x: predict(network, x.mapped() if isinstance(x, InFile) else x, "cpu"))
    elif control:
        control.close()


@contextmanager
def reporting_failures(assignment: DdpAssignment) -> Iterator[None]:
    """Report an exception to the driver unless it only follows from the loss of another worker."""
    try:
        yield
    except Exception as error:
        if not is_lost_peer(error):
            report_failure(assignment.endpoint, role(), traceback.format_exc())
        raise


def is_lost_peer(error: Exception) -> bool:
    """Guess from an error whether it only says that another process is gone: gloo raises a plain RuntimeError for that.

    If a worker's own error is taken for a lost peer, it is not reported, and the workers are restarted in vain until no
    restart is left. If a lost peer is not recognised, the trial ends, although a restart would have saved it.
    """
    if isinstance(error, EOFError | ConnectionError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error).lower() for part in NETWORK_ERRORS)


def role() -> str:
    """Return the role to which this worker's resources are attributed."""
    return os.environ.get("TRAINOFF_ROLE") or f"worker-{dist.get_rank() if dist.is_initialized() else '?'}"


def train(assignment: DdpAssignment, fetch: Fetch) -> tuple[TorchNetwork, ControlClient | None]:
    """Train as one worker of the group; return the network and, on rank 0, the control client.

    `fetch` returns the assigned job with its rows.
    """
    control = ControlClient(assignment.endpoint, assignment.snapshot_schedule) if dist.get_rank() == 0 else None
    if control:
        control.report_state("connected")
    job = fetch(assignment.job)
    dist.barrier()
    if control:
        control.report_state("shipped")
    worker = WORKERS[job.mode](job)
    worker.warm_up()
    first = resume(worker, assignment)
    dist.barrier()  # all workers can start
    if control:
        control.wait_for_start()
    dist.barrier()
    every, roles = gather_all(make_steps(worker, assignment, control, first)), all_roles()
    if control:
        control.end({"breakdowns": seconds_by_worker(every, roles)})
    return worker.network, control


def resume(worker: Worker, assignment: DdpAssignment) -> int:
    """Load the last checkpoint, if there is one; return the first step to make."""
    found = assignment.checkpoints.load()
    if not found:
        return 1
    worker.load_state(found.state)
    assignment.snapshot_schedule.taken(worker.job.order.samples_after(len(found.done)))
    return len(found.done) + 1


def make_steps(
    worker: Worker, assignment: DdpAssignment, control: ControlClient | None, start: int
) -> NDArray[np.float64]:
    """Make all rounds from a step on; return the seconds of each, and those of synchronising."""
    times, order = [], worker.job.order
    for first, last in spans(order, worker.tau):
        if first < start:
            continue
        before = time.monotonic()
        loss, syncing = worker.train(first, last)
        times.append((time.monotonic() - before, syncing))
        assignment.checkpoints.step_done(control, order, last, loss, worker.network.weights, worker.state)
    return np.array(times).reshape(-1, 2)


def gather_all(figures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gather the figures of all workers, of which each has as many."""
    local = torch.from_numpy(figures)
    found = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(found, local)
    return torch.stack(found).numpy()


def all_roles() -> list[str]:
    """Return the roles of all workers, or names by rank if the roles are not distinct."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, role())
    return found if len(set(found)) == len(found) else [f"worker-{number}" for number in range(len(found))]


def train_on_spark(endpoint: Endpoint, job: Job, snapshot_schedule: SnapshotSchedule, folder: str) -> None:
    """Train as one worker of Spark's TorchDistributor, on the rows in a folder."""
    join(job.cores)
    rows = {f"{name}_train": np.load(Path(folder, f"{name}.npy"), mmap_mode="r") for name in ("x", "y")}
    assignment = DdpAssignment(job, endpoint, snapshot_schedule)
    work(assignment, lambda job: replace(job, data=replace(job.data, **rows)), serve=False)


def write_rows(job: Job, folder: Path) -> None:
    """Write the training rows into files that every process of this machine can map."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", job.data.x_train)
    np.save(folder / "y.npy", job.data.y_train)


class Worker:
    """One member of the process group: its network, its rows, and how it synchronises with the others."""

    tau: int  # steps between two synchronisations

    def __init__(self, job: Job) -> None:
        self.job, self.rank, self.workers = job, dist.get_rank(), dist.get_world_size()
        self.network = TorchNetwork(job, "cpu")
        self._rows = DenseRows(on_device(job.data.x_train, "cpu"), on_device(job.data.y_train, "cpu"))

    def train(self, first: int, last: int) -> tuple[float, float]:
        """Make the steps from first to last and synchronise; return the loss and the seconds of synchronising."""
        raise NotImplementedError

    def state(self) -> Sequence[Tensor]:
        """Return rank 0's state for a checkpoint; a collective call, which every worker must make."""
        raise NotImplementedError

    def load_state(self, state: Sequence[Any]) -> None:
        """Continue from a checkpoint."""
        raise NotImplementedError

    def share(self, step: int) -> tuple[Tensor, float]:
        """Return this worker's rows of a batch, and their fraction of it."""
        batch = self.job.order.batch(step)
        rows = share(batch, self.rank, self.workers)
        return torch.from_numpy(rows), len(rows) / len(batch)

    def step(self, step: int, rows: Tensor) -> float:
        """Make a step on these rows; return the loss before it."""
        return self.network.train_step(self._rows.take(rows), float(self.job.rates[step - 1])).item()

    def warm_up(self) -> None:
        """Make a step of every size that a share can have, as many on all workers."""
        sizes = (max(1, -(-size // self.workers)) for size in self.job.order.batch_sizes)
        warm_up(sizes, self.network, self._rows)


class GradientSyncWorker(Worker):
    """Averages every step's gradients over all workers, weighted by their rows."""

    tau = 1

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._loss = WeightedLoss(self.network)
        self._distributed = DistributedDataParallel(self._loss, gradient_as_bucket_view=True)
        self._part = 1.0 / self.workers  # of the batch
        self._backward_end = self._sync_s = 0.0
        for first in self.network.parameters[:2]:  # their gradients are the last to be computed
            hook = first.register_post_accumulate_grad_hook
            hook(self._record_backward_end)  # type: ignore[no-untyped-call]  # torch has no types here
        self.network.gradients = self._gradients

    def train(self, first: int, last: int) -> tuple[float, float]:
        rows, self._part = self.share(first)
        if not len(rows):  # takes part in the collective call with the weight 0
            rows = torch.zeros(1, dtype=torch.int64)
        return self.step(first, rows), self._sync_s

    def _record_backward_end(self, _: Tensor) -> None:
        self._backward_end = time.monotonic()

    def _gradients(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return the loss and the gradient of the whole batch; record the time after this worker's own gradient."""
        self._distributed.zero_grad()
        # torch averages over the workers; the sum is needed.
        self._distributed(batch.x, batch.y, self._part * self.workers).backward()
        self._sync_s = time.monotonic() - self._backward_end
        return grad_of(self._loss.loss_sum), [grad_of(part).view(-1) for part in self.network.parameters]

    def state(self) -> Sequence[Tensor]:
        return self.network.state

    def load_state(self, state: Sequence[Any]) -> None:
        copy_all(self.network.state, state)


class LocalSgdWorker(Worker):
    """Local SGD: every worker makes tau steps with its own optimiser state, then the weights are averaged."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.tau = job.params["tau"]
        self._sizes = [len(part) for part in self.network.flat]
        self._buffer = torch.empty(sum(self._sizes) + 1)

    def train(self, first: int, last: int) -> tuple[float, float]:
        order, seen, total = self.job.order, 0, 0.0
        for step in range(first, last + 1):
            mine, _ = self.share(step)
            if len(mine):
                seen += len(mine)
                total += len(mine) * self.step(step, mine)
        rows = order.samples_after(last) - order.samples_after(first - 1)
        start = time.monotonic()
        loss = self._average(seen / rows, total / rows)
        return loss, time.monotonic() - start

    def _average(self, part: float, loss: float) -> float:
        """Replace the weights by the weighted average of all workers; return the sum of the losses."""
        flat = self.network.flat
        weights = self._buffer[:-1]
        torch.cat(flat, out=weights)
        weights *= part
        self._buffer[-1] = loss
        dist.all_reduce(self._buffer)
        copy_all(flat, torch.split_with_sizes(weights, self._sizes))
        return float(self._buffer[-1])

    def state(self) -> Sequence[Tensor]:
        return [*self.network.flat, *self._optimizer_states()]

    def _optimizer_states(self) -> list[Tensor]:
        """Gather every worker's optimiser state on rank 0, one vector each."""
        if not self.network.memory:
            return []
        local = torch.cat([part.view(-1) for part in self.network.memory])
        found = [torch.empty_like(local) for _ in range(self.workers)] if self.rank == 0 else None
        dist.gather(local, found)
        return found or []

    def load_state(self, state: Sequence[Any]) -> None:
        network = self.network
        copy_all(network.flat, state[: len(network.flat)])
        if network.memory:
            local = torch.from_numpy(state[len(network.flat) + self.rank])
            parts = torch.split_with_sizes(local, [part.numel() for part in network.memory])
            copy_all([part.view(-1) for part in network.memory], parts)


WORKERS: Mapping[str, type[Worker]] = {"sync": GradientSyncWorker, "local": LocalSgdWorker}


def copy_all(tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
    """Copy a value into every tensor."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(torch.as_tensor(value))


class WeightedLoss(torch.nn.Module):
    """The loss of a worker's share as a module, which DistributedDataParallel needs.

    The loss is summed over the workers like a gradient: it is that of a parameter `loss_sum` which is never updated.
    """

    def __init__(self, network: TorchNetwork) -> None:
        super().__init__()
        self._loss = network.loss
        self.weights = torch.nn.ParameterList(network.parameters)
        self.loss_sum = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor, part: float) -> Tensor:
        loss = self._loss(Batch(x, y)) * part
        return loss + self.loss_sum * loss.detach()


def grad_of(parameter: Tensor) -> Tensor:
    """Return a parameter's last gradient."""
    assert parameter.grad is not None
    return parameter.grad
