"""A worker of a torch process group: it takes its share of every batch and synchronises gradients, or weights.

It runs in every process of the group, whichever system formed it. The first one leads and talks to the driver.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any, Protocol

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
NETWORK_WORDS = ("gloo", "connection", "store", "socket")  # in what torch says when it cannot reach a worker


def join(cores: float) -> None:
    """Form the process group that the environment names, to compute with so many cores."""
    torch.set_num_threads(ceil(cores))
    dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_S))


def work(assignment: DdpAssignment, fetch: Fetch) -> None:
    """Work to the end of the training; who leads labels what is asked for then, until the driver hangs up."""
    network, leader = train(assignment, fetch)
    dist.barrier()
    dist.destroy_process_group()
    if leader:
        leader.serve_requests(lambda rows: predict(network, rows.mapped() if isinstance(rows, InFile) else rows, "cpu"))


@contextmanager
def reporting_failures(assignment: DdpAssignment) -> Iterator[None]:
    """Let the driver know of an exception that is this worker's own, and not what came of the loss of another."""
    try:
        yield
    except Exception as error:
        if not of_others(error):
            report_failure(assignment.endpoint, role(), traceback.format_exc())
        raise


def of_others(error: Exception) -> bool:
    """Whether an error only says that another process is gone."""
    if isinstance(error, EOFError | ConnectionError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NETWORK_WORDS)


def role() -> str:
    """The role that this worker is booked on."""
    return os.environ.get("TRAINOFF_ROLE") or f"worker-{dist.get_rank() if dist.is_initialized() else '?'}"


def train(assignment: DdpAssignment, fetch: Fetch) -> tuple[TorchNetwork, ControlClient | None]:
    """Be one worker of the group, to the last step; returns what has learnt, and the leader's line.

    `fetch` makes of the job that was assigned one with its rows at hand.
    """
    leader = ControlClient(assignment.endpoint, assignment.snapshot_schedule) if dist.get_rank() == 0 else None
    if leader:
        leader.report_state("connected")
    worker = make_worker(fetch(assignment.job))
    dist.barrier()
    if leader:
        leader.report_state("shipped")
    way = WAYS[worker.job.mode](worker)
    worker.warm_up()
    training = Training(worker, way, assignment, leader)
    first = training.resume()
    dist.barrier()  # so that all can start when the leader says so
    if leader:
        leader.wait_for_start()
    dist.barrier()
    every, roles = tell_all(training.run(first)), all_roles()
    if leader:
        leader.end({"breakdowns": seconds_by_worker(every, roles)})
    return worker.network, leader


@dataclass(frozen=True)
class Training:
    """The steps of one worker, with the calls to the driver where it leads."""

    worker: Worker
    way: SyncStrategy
    assignment: DdpAssignment
    leader: ControlClient | None

    def resume(self) -> int:
        """Go back to the last checkpoint, if there is one; returns the first step to make."""
        found = self.assignment.checkpoints.load() if self.assignment.checkpoints else None
        if not found:
            return 1
        self.way.put(found.state)
        self.assignment.snapshot_schedule.taken(self.worker.job.order.samples_after(len(found.done)))
        return len(found.done) + 1

    def run(self, start: int) -> NDArray[np.float64]:
        """All rounds from a step on; returns the seconds of each, and those of agreeing."""
        times = []
        for first, last in spans(self.worker.job.order, self.way.tau):
            if first < start:
                continue
            before = time.monotonic()
            loss, agreeing = self.way.learn(first, last)
            times.append((time.monotonic() - before, agreeing))
            self._done(last, loss)
        return np.array(times).reshape(-1, 2)

    def _done(self, step: int, loss: float) -> None:
        """All steps up to this one are done: tell the driver, and keep a checkpoint if it is time to."""
        checkpoints = self.assignment.checkpoints
        due = checkpoints is not None and checkpoints.due(step) and step < self.worker.job.order.steps
        if self.leader:
            if due:
                self.leader.report_now()  # so that the driver knows of every step that a checkpoint holds
            self.leader.progress(step, loss, self.worker.network.weights)
        if due and checkpoints:
            state = self.way.state()
            if self.leader:
                checkpoints.save(state, range(1, step + 1))
            checkpoints.saved(step)


def tell_all(figures: NDArray[np.float64]) -> NDArray[np.float64]:
    """The figures of all workers, each of which has as many."""
    own = torch.from_numpy(figures)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return torch.stack(found).numpy()


def all_roles() -> list[str]:
    """The roles of all workers; where these are not different, their numbers."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, role())
    return found if len(set(found)) == len(found) else [f"worker-{number}" for number in range(len(found))]


def train_on_spark(endpoint: Endpoint, job: Job, snapshot_schedule: SnapshotSchedule, folder: str) -> None:
    """Be one worker of the group that the environment names, on the rows that lie in a folder, to the end."""
    join(job.cores)
    rows = map_rows(Path(folder))
    _, leader = train(
        DdpAssignment(job, endpoint, snapshot_schedule), lambda job: replace(job, data=replace(job.data, **rows))
    )
    if leader:
        leader.close()
    dist.barrier()
    dist.destroy_process_group()


def write_rows(job: Job, folder: Path) -> None:
    """Put the training rows into files that every process of this machine can map."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", job.data.x_train)
    np.save(folder / "y.npy", job.data.y_train)


def map_rows(folder: Path) -> dict[str, Any]:
    """The training rows as fields of a dataset, mapped from the files."""
    return {f"{name}_train": np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}


@dataclass(frozen=True)
class Worker:
    """One member of the process group, with what it learns and what from."""

    job: Job
    network: TorchNetwork
    source: DenseRows
    rank: int
    workers: int

    def share(self, step: int) -> tuple[Tensor, float]:
        """This worker's rows of a batch, and which part of it they are."""
        batch = self.job.order.batch(step)
        mine = share(batch, self.rank, self.workers)
        return torch.from_numpy(mine), len(mine) / len(batch)

    def learn(self, step: int, mine: Tensor) -> float:
        """Make a step on these rows; returns the loss before it."""
        return self.network.learn(self.source.take(mine), float(self.job.rates[step - 1])).item()

    def warm_up(self) -> None:
        """Make a step of every size that a share has: all workers equally many."""
        sizes = (max(1, -(-size // self.workers)) for size in self.job.order.batch_sizes)
        warm_up(sizes, self.network, self.source)


def make_worker(job: Job) -> Worker:
    """This process as a member of the group."""
    source = DenseRows(on_device(job.data.x_train, "cpu"), on_device(job.data.y_train, "cpu"))
    return Worker(job, TorchNetwork(job, "cpu"), source, dist.get_rank(), dist.get_world_size())


class SyncStrategy(Protocol):
    """How workers agree."""

    tau: int  # steps between two agreements

    def learn(self, first: int, last: int) -> tuple[float, float]:
        """Make the steps from first to last and agree; returns the loss, and the seconds that agreeing took."""

    def state(self) -> Sequence[Tensor]:
        """All that must be kept to go on from here, for the leader; every worker must ask at the same time."""

    def put(self, state: Sequence[Any]) -> None:
        """Go on from what was kept."""


class GradientSyncStrategy:
    """Every step's gradients are averaged over all workers, weighted by their rows."""

    tau = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._agreement = worker.network.gradients = GradientSync(worker.network)

    def learn(self, first: int, last: int) -> tuple[float, float]:
        mine, self._agreement.part = self._worker.share(first)
        if not len(mine):  # the others still need this worker's part, even if it is nothing
            mine = torch.zeros(1, dtype=torch.int64)
        return self._worker.learn(first, mine), self._agreement.took

    def state(self) -> Sequence[Tensor]:
        return self._worker.network.state

    def put(self, state: Sequence[Any]) -> None:
        put(self._worker.network.state, state)


class LocalSgdStrategy:
    """Every worker makes some steps of its own, with a memory of its own; then the weights are averaged."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self.tau = worker, worker.job.params["tau"]
        self._sizes = [len(part) for part in worker.network.flat]
        self._room = torch.empty(sum(self._sizes) + 1)

    def learn(self, first: int, last: int) -> tuple[float, float]:
        order, seen, total = self._worker.job.order, 0, 0.0
        for step in range(first, last + 1):
            mine, _ = self._worker.share(step)
            if len(mine):
                seen += len(mine)
                total += len(mine) * self._worker.learn(step, mine)
        rows = order.samples_after(last) - order.samples_after(first - 1)
        start = time.monotonic()
        loss = self._average(seen / rows, total / rows)
        return loss, time.monotonic() - start

    def _average(self, part: float, loss: float) -> float:
        """Replace the weights by the average of all workers', of which these are a part; returns the sum of losses."""
        flat = self._worker.network.flat
        weights = self._room[:-1]
        torch.cat(flat, out=weights)
        weights *= part
        self._room[-1] = loss
        dist.all_reduce(self._room)
        put(flat, torch.split_with_sizes(weights, self._sizes))
        return float(self._room[-1])

    def state(self) -> Sequence[Tensor]:
        network = self._worker.network
        return [*network.flat, *self._memories()]

    def _memories(self) -> list[Tensor]:
        """What every worker's optimiser remembers, one vector each, for the leader."""
        if not self._worker.network.memory:
            return []
        own = torch.cat([part.view(-1) for part in self._worker.network.memory])
        found = [torch.empty_like(own) for _ in range(self._worker.workers)] if self._worker.rank == 0 else None
        dist.gather(own, found)
        return found or []

    def put(self, state: Sequence[Any]) -> None:
        network = self._worker.network
        put(network.flat, state[: len(network.flat)])
        if network.memory:
            own = torch.from_numpy(state[len(network.flat) + self._worker.rank])
            parts = torch.split_with_sizes(own, [part.numel() for part in network.memory])
            put([part.view(-1) for part in network.memory], parts)


def put(tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
    """Give every tensor its value."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(torch.as_tensor(value))


WAYS: dict[str, Callable[[Worker], SyncStrategy]] = {"sync": GradientSyncStrategy, "local": LocalSgdStrategy}


class Shared(torch.nn.Module):
    """The loss of a worker's share as a module, which is what torch can distribute.

    The loss travels as a gradient among the others: it is the gradient along a parameter that nobody changes.
    """

    def __init__(self, network: TorchNetwork) -> None:
        super().__init__()
        self._loss = network.loss
        self.weights = torch.nn.ParameterList(network.parameters)
        self.echo = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor, part: float) -> Tensor:
        loss = self._loss(Batch(x, y)) * part
        return loss + self.echo * loss.detach()


class GradientSync:
    """The gradient of the whole batch: the workers' gradients, each weighted by its part of the rows.

    `took` is how long the last agreeing took here, after this worker's own gradient was known.
    """

    def __init__(self, network: TorchNetwork) -> None:
        self._network, self._shared = network, Shared(network)
        self._spread = DistributedDataParallel(self._shared, gradient_as_bucket_view=True)
        self._workers = dist.get_world_size()
        self.part = 1.0 / self._workers
        self._known = self.took = 0.0
        for first in network.parameters[:2]:  # their gradients are the last to be known
            hook = first.register_post_accumulate_grad_hook
            hook(self._look_at_the_clock)  # type: ignore[no-untyped-call]  # torch has no types here

    def _look_at_the_clock(self, _: Tensor) -> None:
        self._known = time.monotonic()

    def __call__(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        self._spread.zero_grad()
        # The average over the workers is taken; it should be the sum.
        self._spread(batch.x, batch.y, self.part * self._workers).backward()
        self.took = time.monotonic() - self._known
        return grad_of(self._shared.echo), [grad_of(part).view(-1) for part in self._network.parameters]


def grad_of(parameter: Tensor) -> Tensor:
    """The gradient that was found last."""
    assert parameter.grad is not None
    return parameter.grad
