"""Rows pushed by Spark: split into batches on their executor, and pushed to the TensorFlow process there.

A partition is split into as many batches as there are steps for it, however many rows it has, so that no worker waits
for rows that never come: in synchronous training one for every step of the epoch, some of them empty if it has fewer
rows than steps; in asynchronous training its share of the steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.shared.shipping import expand
from trainoff.engines.tf_on_spark.compat import Access

BLOCK_ROWS = 1000  # rows that are sent at a time; one by one, a row costs more to send than to train on
SHUFFLE_BLOCKS = 8  # blocks whose rows are shuffled together
MAX_QUEUED = 8  # pushes that may wait in the queue
POLL_S = 0.005

Block = tuple[NDArray[Any], NDArray[np.int64]]  # rows and their classes


@dataclass(frozen=True)
class Batches:
    """Rows for some steps, one after the other: `sizes` says how many for each."""

    x: NDArray[Any]  # as they are sent
    y: NDArray[np.int64]
    sizes: list[int]

    def __iter__(self) -> Iterator[Block]:
        edges = np.cumsum([0, *self.sizes])
        for first, last in pairwise(edges):
            yield expand(self.x[first:last]), self.y[first:last]


@dataclass(frozen=True)
class PushTask:
    """What the driver sends to every executor for one epoch."""

    access: Access
    epoch: int
    seed: int
    rows: list[int]  # of each partition
    batches: list[int]  # into which each partition is split
    block_rows: int
    width: int  # of a row

    def sizes(self, partition: int) -> list[int]:
        """Return the number of rows in each batch of a partition; they differ by at most one."""
        count = self.batches[partition]
        least, more = divmod(self.rows[partition], count) if count else (0, 0)
        return [least + (index < more) for index in range(count)]


def blocks(x: Any, y: Any, partitions: int) -> list[Block]:
    """Split all rows into blocks, as many for every partition."""
    each = max(1, -(-len(y) // partitions // BLOCK_ROWS))
    parts = np.array_split(np.arange(len(y)), partitions)
    indices = [rows for part in parts for rows in np.array_split(part, each)]
    return [(np.asarray(x[rows]), np.asarray(y[rows])) for rows in indices]


def apportion(steps: int, sizes: Sequence[int]) -> list[int]:
    """Return how many of the steps each partition gets, by its rows; one without rows gets none."""
    edges = np.rint(np.cumsum([0, *sizes]) * steps / max(1, sum(sizes))).astype(int)
    counts = np.diff(edges)
    counts[np.asarray(sizes) == 0] = 0
    return [int(count) for count in counts]


def push(task: PushTask, partition: int, rows: Iterator[Block]) -> Iterator[tuple[int, float]]:
    """Push a partition to the TensorFlow process of this executor, in another order every epoch. Run by Spark.

    Yields the bytes and the seconds that this took, without waiting for the consumer.
    """
    queue = task.access.manager().get_queue("input")
    seconds, size = 0.0, 0
    random = np.random.default_rng([task.seed, task.epoch, partition])
    for item in split_batches(shuffle(rows, random), task.sizes(partition), task.block_rows, task.width):
        while queue.qsize() >= MAX_QUEUED:
            time.sleep(POLL_S)
        start = time.monotonic()
        queue.put(item)
        seconds += time.monotonic() - start
        size += item.x.nbytes + item.y.nbytes
    yield size, seconds


def shuffle(blocks: Iterator[Block], random: np.random.Generator) -> Iterator[Block]:
    """Shuffle the rows of some blocks at a time, so that the first can be used before the last have come."""
    while some := list(islice(blocks, SHUFFLE_BLOCKS)):
        x, y = (np.concatenate([block[part] for block in some]) for part in (0, 1))
        order = random.permutation(len(y))
        yield x[order], y[order]


def split_batches(rows: Iterator[Block], sizes: Sequence[int], block_rows: int, width: int) -> Iterator[Batches]:
    """Split the rows into batches of these sizes, and send at least `block_rows` rows at a time."""
    x, y = next(rows, (np.zeros((0, width), np.float32), np.zeros(0, np.int64)))
    first = 0
    while first < len(sizes):
        totals = np.cumsum(sizes[first:])
        count = min(len(totals), 1 + int(np.searchsorted(totals, block_rows)))
        needed = int(totals[count - 1])
        while len(y) < needed:
            more_x, more_y = next(rows)
            x, y = np.concatenate([x, more_x]), np.concatenate([y, more_y])
        yield Batches(x[:needed], y[:needed], list(sizes[first : first + count]))
        x, y = x[needed:], y[needed:]
        first += count
    for _ in rows:
        pass  # Spark uses a Python process again only if it has read all that was sent to it


class FeedReader:
    """What Spark pushes to this TensorFlow process, read through tensorflowonspark's DataFeed."""

    def __init__(self, address: Any, key: bytes) -> None:
        from tensorflowonspark import TFManager, TFNode

        self._feed = TFNode.DataFeed(TFManager.connect(address, key))

    def next(self) -> Any:
        """Return the next item; None at the end."""
        items = self._feed.next_batch(1)
        return items[0] if items else None

    def batches(self) -> Iterator[Block]:
        """Iterate over the batches."""
        while (item := self.next()) is not None:
            yield from item

    def reply(self, result: Any) -> None:
        """Send the result of a request back to Spark."""
        self._feed.batch_results([result])


@dataclass(frozen=True)
class PredictRequest:
    """Rows to predict, by the weights that were sent last."""

    x: NDArray[np.float32]
    weights: NDArray[np.float32] | None


def request_predictions(
    access: Access, broadcast: Any, blocks: Iterator[NDArray[np.float32]]
) -> Iterator[NDArray[np.int64]]:
    """Return the classes of a partition's rows, in their order, by the weights. Run by Spark."""
    manager = access.manager()
    requests, results = manager.get_queue("input"), manager.get_queue("output")
    weights = broadcast.value
    for x in blocks:
        requests.put(PredictRequest(x, weights))
        weights = None
        yield results.get()
        results.task_done()
