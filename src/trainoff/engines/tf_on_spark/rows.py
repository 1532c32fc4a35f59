"""The training rows on their way to the executors: to all of them, or to each the part that it will push."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import Job
from trainoff.engines.shared.shipping import InFile, arrived, compact, with_rows, without_rows
from trainoff.engines.shared.storage import Storage
from trainoff.engines.tf_on_spark.feed import blocks

if TYPE_CHECKING:
    from trainoff.engines.spark.session import Session

FOLDER = "trainoff-rows"  # in that of an executor


def storage_of(job: Job) -> Storage | None:
    """Where the rows lie, if that is said."""
    if not (url := job.params["storage"]):
        return None
    rows = len(job.data.y_train)
    return Storage(url, job.params["format"], f"{job.data.name.replace('/', '_')}-{job.data.identity[:12]}-{rows}")


def with_places(job: Job) -> Job:
    """The job for TensorFlow's processes: where its rows lie, or would lie, in the folder of their executor."""
    places: dict[str, Any] = {
        name: InFile(f"{FOLDER}/{name}", 0, rows.shape, rows.dtype.str)
        for name, rows in (("x_train", job.data.x_train), ("y_train", job.data.y_train))
    }
    lean = without_rows(job)
    return replace(lean, data=replace(lean.data, **places))


def broadcast(session: Session, job: Job) -> None:
    """Send all rows to every executor."""
    sent = session.context.broadcast(with_rows(job))
    every = session.context.parallelize(range(session.executors), session.executors).barrier()
    every.mapPartitions(partial(_unpack, sent)).collect()
    sent.destroy()


def lay_out(session: Session, job: Job, storage: Storage | None) -> tuple[Any, list[int]]:
    """The rows as an RDD in the memory of the executors, a partition for every worker, and how many each has."""
    if storage:
        shares = storage.shares(len(job.data.y_train), job.workers)
        rows = session.context.parallelize(shares, job.workers).mapPartitions(partial(_read, storage))
    else:
        every = blocks(compact(job.data.x_train), job.data.y_train, job.workers)
        rows = session.context.parallelize(every, job.workers)
    rows = rows.persist()
    return rows, rows.barrier().mapPartitions(_count).collect()


def _unpack(sent: Any, parts: Iterator[int]) -> Iterator[int]:
    """Leave the rows in the executor's folder. Run by Spark on every executor."""
    yield from parts
    folder, data = Path(FOLDER), arrived(sent.value).data
    folder.mkdir(exist_ok=True)
    data.x_train.tofile(folder / "x_train")
    data.y_train.tofile(folder / "y_train")


def _read(storage: Storage, shares: Iterator[Any]) -> Iterator[Any]:
    """The rows of a worker's share, in blocks. Run by Spark."""
    for part, first, last in chain.from_iterable(shares):
        x, y = storage.read(part)
        yield from blocks(x[first:last], y[first:last], 1)


def _count(found: Iterator[Any]) -> Iterator[int]:
    """How many rows a partition has. Run by Spark."""
    yield sum(len(y) for _, y in found)
