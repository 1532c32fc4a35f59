"""Several processes that learn as one: each takes its share of every batch, and they agree on the gradient.

Run in every process of a torch process group. The first one leads: it speaks with the driver.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainoff.data.order import share
from trainoff.engines.contract import Job
from trainoff.engines.line import Leader, Number
from trainoff.engines.pace import Pace
from trainoff.engines.torch import rows, warm_up
from trainoff.engines.torch.network import Network

JOIN_S = 120


class Agreement:
    """The sum of all workers' gradients, each weighted by its share of the batch's rows; the loss goes along."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._room = torch.empty(sum(sizes) + 1)
        self.part = 1.0

    def __call__(self, gradient: list[Tensor], loss: Tensor) -> tuple[list[Tensor], Tensor]:
        torch.cat([*gradient, loss.view(1)], out=self._room)
        self._room *= self.part
        dist.all_reduce(self._room)
        return list(torch.split_with_sizes(self._room[:-1], self._sizes)), self._room[-1]


def learn_together(number: Number, job: Job, pace: Pace, folder: str) -> None:
    """Be one worker of the group that the environment names, on the rows that lie in a folder, to the end."""
    torch.set_num_threads(max(1, int(job.cores)))
    dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_S))
    rank, workers = dist.get_rank(), dist.get_world_size()
    job = replace(job, data=replace(job.data, **fetch_rows(Path(folder))))
    network = Network(job, "cpu")
    source = rows.Dense(rows.on(job.data.x_train, "cpu"), rows.on(job.data.y_train, "cpu"))
    shares = (len(share(np.arange(size), rank, workers)) for size in job.order.batch_sizes)
    warm_up(filter(None, shares), network, source)
    agreement = network.agree = Agreement([part.size for part in job.weights])
    leader = Leader(number, pace) if rank == 0 else None
    dist.barrier()
    if leader:
        leader.wait_for_start()
    dist.barrier()
    for step, batch in job.order.batches():
        mine = share(batch, rank, workers)
        agreement.part = len(mine) / len(batch)
        if not len(mine):  # the others still need this worker's part, even if it is nothing
            mine = batch[:1]
        loss = network.learn(source.take(torch.from_numpy(mine)), float(job.rates[step - 1]))
        if leader:
            leader.progress(step, loss.item(), network.weights)
    if leader:
        leader.end()
        leader.close()
    dist.barrier()
    dist.destroy_process_group()


def leave_rows(job: Job, folder: Path) -> None:
    """Put the training rows into files that every process of this machine can map."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", job.data.x_train)
    np.save(folder / "y.npy", job.data.y_train)


def fetch_rows(folder: Path) -> dict[str, Any]:
    """The training rows as fields of a dataset, mapped from the files."""
    return {f"{name}_train": np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}
