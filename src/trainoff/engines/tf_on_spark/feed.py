"""Rows pushed by Spark: cut into batches on the executor that has them, pushed to the TensorFlow process there, taken.

However many rows a partition has, it is cut into as many batches as there are steps for it, so that nobody waits for
rows that never come: in synchronous training into one for every step of the epoch, some of them empty where it has
fewer rows than that; in asynchronous training into its share of the steps.
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

BLOCK_ROWS = 1000  # so many travel at a time; one by one, a row costs more on its way than in the training
MIXED_BLOCKS = 8  # blocks whose rows are mixed with each other
MOST_AHEAD = 8  # so many pushes may lie in the queue
POLL_S = 0.005

Block = tuple[NDArray[Any], NDArray[np.int64]]  # rows and their classes


@dataclass(frozen=True)
class Batches:
    """Rows for some steps, one after the other: as many for each as `sizes` says."""

    x: NDArray[Any]  # as they travel
    y: NDArray[np.int64]
    sizes: list[int]

    def __iter__(self) -> Iterator[Block]:
        edges = np.cumsum([0, *self.sizes])
        for first, last in pairwise(edges):
            yield expand(self.x[first:last]), self.y[first:last]


@dataclass(frozen=True)
class Push:
    """What the driver asks of every executor in one epoch."""

    access: Access
    epoch: int
    seed: int
    rows: list[int]  # how many each partition has
    batches: list[int]  # how many each partition is cut into
    block_rows: int
    width: int  # of a row

    def sizes(self, partition: int) -> list[int]:
        """How many rows each batch of a partition has: as many as the others, or one more."""
        count = self.batches[partition]
        least, more = divmod(self.rows[partition], count) if count else (0, 0)
        return [least + (number < more) for number in range(count)]


def blocks(x: Any, y: Any, partitions: int) -> list[Block]:
    """All rows as blocks, as many for every partition."""
    each = max(1, -(-len(y) // partitions // BLOCK_ROWS))
    parts = np.array_split(np.arange(len(y)), partitions)
    cut = [rows for part in parts for rows in np.array_split(part, each)]
    return [(np.asarray(x[rows]), np.asarray(y[rows])) for rows in cut]


def apportion(steps: int, sizes: Sequence[int]) -> list[int]:
    """How many of the steps go to each partition, by its rows; one without rows gets none."""
    edges = np.rint(np.cumsum([0, *sizes]) * steps / max(1, sum(sizes))).astype(int)
    found = np.diff(edges)
    found[np.asarray(sizes) == 0] = 0
    return [int(count) for count in found]


@dataclass(frozen=True)
class Pushed:
    """What it took to push a partition."""

    size: int  # bytes
    seconds: float  # without waiting for the other side


def push(asked: Push, partition: int, rows: Iterator[Block]) -> Iterator[Pushed]:
    """Push a partition to the TensorFlow process of this executor, in another order every epoch. Run by Spark."""
    queue = asked.access.manager().get_queue("input")
    working, size = 0.0, 0
    random = np.random.default_rng([asked.seed, asked.epoch, partition])
    for item in cut(mix(rows, random), asked.sizes(partition), asked.block_rows, asked.width):
        while queue.qsize() >= MOST_AHEAD:
            time.sleep(POLL_S)
        start = time.monotonic()
        queue.put(item)
        working += time.monotonic() - start
        size += item.x.nbytes + item.y.nbytes
    yield Pushed(size, working)


def mix(blocks: Iterator[Block], random: np.random.Generator) -> Iterator[Block]:
    """The same rows in another order; mixed some at a time, so that the first can go before the last have come."""
    while some := list(islice(blocks, MIXED_BLOCKS)):
        x, y = (np.concatenate([block[part] for block in some]) for part in (0, 1))
        order = random.permutation(len(y))
        yield x[order], y[order]


def cut(rows: Iterator[Block], sizes: Sequence[int], block_rows: int, width: int) -> Iterator[Batches]:
    """The rows cut into batches of these sizes; so many of them travel together that they have `block_rows`."""
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


class Tap:
    """Where the TensorFlow process takes what is pushed: tensorflowonspark's own feed."""

    def __init__(self, address: Any, key: bytes) -> None:
        from tensorflowonspark import TFManager, TFNode

        manager = TFManager.connect(address, key)
        self._feed = TFNode.DataFeed(manager)

    def take(self) -> Any:
        """What was pushed next; None at the end."""
        found = self._feed.next_batch(1)
        return found[0] if found else None

    def batches(self) -> Iterator[Block]:
        """Batch after batch."""
        while (item := self.take()) is not None:
            yield from item

    def give(self, result: Any) -> None:
        """Answer what was pushed."""
        self._feed.batch_results([result])


@dataclass(frozen=True)
class PredictRequest:
    """Rows whose classes are asked for; by the weights that came last."""

    x: NDArray[np.float32]
    weights: NDArray[np.float32] | None


@dataclass(frozen=True)
class PredictClient:
    """What the driver asks of every executor."""

    access: Access
    weights: Any  # broadcast: one vector


def ask(asking: PredictClient, blocks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.int64]]:
    """The classes of a partition's rows, in their order. Run by Spark."""
    manager = asking.access.manager()
    there, back = manager.get_queue("input"), manager.get_queue("output")
    weights = asking.weights.value
    for x in blocks:
        there.put(PredictRequest(x, weights))
        weights = None
        yield back.get()
        back.task_done()


def answer(tf: Any, model: Any, question: PredictRequest, tap: Tap, labels: Any) -> Any:
    """Answer a question; returns what labels by its weights, for the next one."""
    from trainoff.engines.tensorflow import predict
    from trainoff.engines.tensorflow.network import labeller
    from trainoff.models import unflatten

    if question.weights is not None:
        labels = labeller(tf, model, [tf.constant(part) for part in unflatten(model, question.weights)])
    tap.give(predict(labels, question.x))
    return labels
