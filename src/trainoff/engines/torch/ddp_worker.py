"""Several processes that learn as one: each takes its share of every batch, and they agree.

Run in every process of a torch process group, whoever has formed it. The first one leads: it speaks with the driver.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trainoff.data.order import spans
from trainoff.engines.contract import Job
from trainoff.engines.shared.control_channel import Leader, Number, complain
from trainoff.engines.shared.shipping import InFile
from trainoff.engines.shared.snapshots import Pace
from trainoff.engines.shared.watch import by_worker
from trainoff.engines.torch import predict
from trainoff.engines.torch.assignment import Assignment
from trainoff.engines.torch.network import Network
from trainoff.engines.torch.ways import WAYS, Way, Worker, make_worker

JOIN_S = 120
Fetch = Callable[[Job], Job]
NETWORK_WORDS = ("gloo", "connection", "store", "socket")  # in what torch says when it cannot reach a worker


def join(cores: float) -> None:
    """Form the process group that the environment names, to compute with so many cores."""
    torch.set_num_threads(ceil(cores))
    dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_S))


def work(assignment: Assignment, fetch: Fetch) -> None:
    """Work to the end of the training; who leads labels what is asked for then, until the driver hangs up."""
    network, leader = learn(assignment, fetch)
    dist.barrier()
    dist.destroy_process_group()
    if leader:
        leader.answer(lambda rows: predict(network, rows.mapped() if isinstance(rows, InFile) else rows, "cpu"))


@contextmanager
def owning_up(assignment: Assignment) -> Iterator[None]:
    """Let the driver know of an exception that is this worker's own, and not what came of the loss of another."""
    try:
        yield
    except Exception as error:
        if not of_others(error):
            complain(assignment.number, role(), traceback.format_exc())
        raise


def of_others(error: Exception) -> bool:
    """Whether an error only says that another process is gone."""
    if isinstance(error, EOFError | ConnectionError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NETWORK_WORDS)


def role() -> str:
    """The role that this worker is booked on."""
    return os.environ.get("TRAINOFF_ROLE") or f"worker-{dist.get_rank() if dist.is_initialized() else '?'}"


def learn(assignment: Assignment, fetch: Fetch) -> tuple[Network, Leader | None]:
    """Be one worker of the group, to the last step; returns what has learnt, and the leader's line.

    `fetch` makes of the job that was assigned one with its rows at hand.
    """
    leader = Leader(assignment.number, assignment.pace) if dist.get_rank() == 0 else None
    if leader:
        leader.say("connected")
    worker = make_worker(fetch(assignment.job))
    dist.barrier()
    if leader:
        leader.say("shipped")
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
        leader.end({"breakdowns": by_worker(every, roles)})
    return worker.network, leader


@dataclass(frozen=True)
class Training:
    """The steps of one worker, with the calls to the driver where it leads."""

    worker: Worker
    way: Way
    assignment: Assignment
    leader: Leader | None

    def resume(self) -> int:
        """Go back to the last checkpoint, if there is one; returns the first step to make."""
        found = self.assignment.keeper.load() if self.assignment.keeper else None
        if not found:
            return 1
        self.way.put(found.state)
        self.assignment.pace.taken(self.worker.job.order.samples_after(len(found.done)))
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
        keeper = self.assignment.keeper
        due = keeper is not None and keeper.due(step) and step < self.worker.job.order.steps
        if self.leader:
            if due:
                self.leader.hurry()  # so that the driver knows of every step that a checkpoint holds
            self.leader.progress(step, loss, self.worker.network.weights)
        if due and keeper:
            state = self.way.state()
            if self.leader:
                keeper.save(state, range(1, step + 1))
            keeper.saved(step)


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


def learn_together(number: Number, job: Job, pace: Pace, folder: str) -> None:
    """Be one worker of the group that the environment names, on the rows that lie in a folder, to the end."""
    join(job.cores)
    rows = fetch_rows(Path(folder))
    _, leader = learn(Assignment(job, number, pace), lambda job: replace(job, data=replace(job.data, **rows)))
    if leader:
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
