"""The whole training on the GPU: data, batch order, rates and weights are there, and a step is one CUDA graph.

A graph repeats the same kernels on the same memory, so nothing in a step may come from Python. The step's index is a
tensor on the GPU, by which the rows of the batch and the rate are looked up. Without capture the code also trains on
the CPU, which is how it is tested without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainoff.engines.contract import Job, Refused, Watch
from trainoff.engines.torch.network import SparseRows

if TYPE_CHECKING:
    from trainoff.data import Order
    from trainoff.engines.torch import TorchLearner, TorchRows

cuda: Any = torch.cuda  # half of it has no types

MOST_ORDER_BYTES = 8 * 10**9
WARM_UPS = 3  # steps before a capture, for the libraries to choose kernels and allocate memory
TIMED_STEPS = 200  # of the training, from which the GPU's share of the time is estimated


def prepare(tf32: bool) -> None:
    """Start the GPU and configure torch for it; raise `Refused` without a GPU."""
    if not cuda.is_available():
        lacks = "finds no GPU on this machine" if torch.version.cuda else "has no CUDA"
        raise Refused(
            f'torch {torch.__version__} {lacks}; use device = "cpu", or a machine with a GPU and torch for it'
        )
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # choose the fastest convolutions while warming up
    cuda.init()
    cuda.synchronize()


class CudaGraphTraining:
    """A training that Python only tells to make the next step."""

    def __init__(self, job: Job, learner: TorchLearner, source: TorchRows) -> None:
        self._learner, self._source = learner, source
        check_memory(job.order)
        device = learner.state[0].device
        self._order = padded(job.order).to(device)
        self._rates = torch.tensor(job.rates, dtype=torch.float32, device=device)
        self._index = torch.zeros(1, dtype=torch.int64, device=device)  # of the step, counted from 0
        self._loss = torch.zeros((), device=device)
        if isinstance(source, SparseRows):
            counts = np.diff(job.data.x_train.starts)
            source.nonzeros = max(int(counts[rows].sum()) for _, rows in job.order.batches())
        self._sizes = job.order.batch_sizes
        self._runs: list[Callable[[], None]] = [partial(self.step, size) for size in self._sizes]
        self._meter: Meter | None = None

    def step(self, size: int) -> None:
        """Make the next step, on a batch of some size."""
        rows = self._order.index_select(0, self._index)[0, :size]
        rate = self._rates.index_select(0, self._index)
        self._loss.copy_(self._learner.train_step(self._source.take(rows), rate))
        self._index += 1

    def capture(self) -> None:
        """Capture a graph for each batch size, to be replayed by each step; restore the state after warming up."""
        before = [part.clone() for part in self._learner.state]
        self._runs = [self._capture(size).replay for size in self._sizes]
        for run in self._runs:  # the first replay uploads the graph
            self._index.zero_()
            run()
        for part, value in zip(self._learner.state, before, strict=True):
            part.copy_(value)
        self._index.zero_()
        cuda.synchronize()
        self._meter = Meter(len(self._rates))

    def _capture(self, size: int) -> Any:
        """Return the graph of a step on a batch of some size."""
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._index.zero_()
                self.step(size)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.step(size)
        return graph

    def train(self, job: Job, watch: Watch) -> None:
        """Make every step, and wait for the last.

        Reading a loss waits for it, so it is read only if the training may stop by it.
        """
        full, last = self._runs[0], self._runs[-1]
        settle = cuda.synchronize if self._loss.is_cuda else None
        needs_loss, per_epoch, meter = bool(job.params["stop"]), job.order.steps_per_epoch, self._meter
        start, paused = time.perf_counter(), 0.0
        for step in range(1, job.order.steps + 1):
            run = full if step % per_epoch else last
            if meter and meter.wants(step):
                meter.time(run)
            else:
                run()
            watch.progress(step, self._loss.item() if needs_loss else None)
            if watch.due(settle):
                pause = time.perf_counter()
                if meter:
                    meter.read()
                watch.snapshot(job.order.samples_after(step), self._learner.weights())
                paused += time.perf_counter() - pause
            if watch.should_stop:
                break
        if settle:
            settle()
        if meter:
            trained_s = time.perf_counter() - start - paused
            watch.count("gpu_busy", min(1.0, meter.mean_s * step / trained_s))
            watch.count("gpu_memory_bytes", cuda.max_memory_reserved())


class Meter:
    """Measures how long a step takes on the GPU, by events before and after some of the steps."""

    def __init__(self, steps: int) -> None:
        self._every = max(1, steps // TIMED_STEPS)
        self._pairs: list[tuple[Any, Any]] = []
        self._times: list[float] = []  # in milliseconds

    def wants(self, step: int) -> bool:
        return step % self._every == 0

    def time(self, run: Callable[[], None]) -> None:
        """Run a step between two events."""
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        self._pairs.append((start, end))

    def read(self) -> None:
        """Read the events. This takes a while, so it is done while the clock stands still."""
        self._times += [start.elapsed_time(end) for start, end in self._pairs]
        self._pairs.clear()

    @property
    def mean_s(self) -> float:
        return sum(self._times) / len(self._times) / 1000 if self._times else 0.0


def check_memory(order: Order) -> None:
    """Refuse a training whose batch order alone would fill the GPU's memory."""
    size = order.steps * order.batch_size * 4
    if size > MOST_ORDER_BYTES:
        raise Refused(
            f"the order of {order.epochs:,} epochs takes {size / 1e9:.1f} GB on the GPU, and at most "
            f"{MOST_ORDER_BYTES / 1e9:.0f} GB are given to it; train fewer epochs"
        )


def padded(order: Order) -> torch.Tensor:
    """Return the rows of every step, one step per row of the tensor; short batches are padded with row 0."""
    per_epoch = order.steps_per_epoch
    size = min(order.batch_size, order.rows)
    steps = torch.zeros(order.epochs, per_epoch * size, dtype=torch.int32)
    for epoch in range(order.epochs):
        steps[epoch, : order.rows] = torch.from_numpy(order.epoch(epoch))
    return steps.view(order.epochs * per_epoch, size)
