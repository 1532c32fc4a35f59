"""The two ways in which workers agree: on every gradient, or on the weights after some steps of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainoff.data.order import share
from trainoff.engines.contract import Job
from trainoff.engines.torch import warm_up
from trainoff.engines.torch.agreement import Agreement
from trainoff.engines.torch.network import Network
from trainoff.engines.torch.rows import Dense, on


@dataclass(frozen=True)
class Worker:
    """One member of the process group, with what it learns and what from."""

    job: Job
    network: Network
    source: Dense
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
    source = Dense(on(job.data.x_train, "cpu"), on(job.data.y_train, "cpu"))
    return Worker(job, Network(job, "cpu"), source, dist.get_rank(), dist.get_world_size())


class Way(Protocol):
    """How workers agree."""

    tau: int  # steps between two agreements

    def learn(self, first: int, last: int) -> tuple[float, float]:
        """Make the steps from first to last and agree; returns the loss, and the seconds that agreeing took."""

    def state(self) -> Sequence[Tensor]:
        """All that must be kept to go on from here, for the leader; every worker must ask at the same time."""

    def put(self, state: Sequence[Any]) -> None:
        """Go on from what was kept."""


class Sync:
    """Every step's gradients are averaged over all workers, weighted by their rows."""

    tau = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._agreement = worker.network.slopes = Agreement(worker.network)

    def learn(self, first: int, last: int) -> tuple[float, float]:
        mine, self._agreement.part = self._worker.share(first)
        if not len(mine):  # the others still need this worker's part, even if it is nothing
            mine = torch.zeros(1, dtype=torch.int64)
        return self._worker.learn(first, mine), self._agreement.took

    def state(self) -> Sequence[Tensor]:
        return self._worker.network.state

    def put(self, state: Sequence[Any]) -> None:
        put(self._worker.network.state, state)


class Local:
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


WAYS: dict[str, Callable[[Worker], Way]] = {"sync": Sync, "local": Local}
