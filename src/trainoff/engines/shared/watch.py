"""The watch that engines report to, the channel for a trial's events, and the training loop."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.clusters.lab.cluster import node_traffic
from trainoff.clusters.namespaces import open_in_namespace
from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.snapshots import SnapshotBuffer, SnapshotSchedule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Order
    from trainoff.models import Weights

PHASES = ("import", "cluster_start", "data_load", "ship", "compile", "train", "test", "teardown")
PROGRESS_S = 0.5  # between two progress events
PIPE_BUF = 4096  # bytes that are written to a pipe atomically


class Diverged(Exception):
    """The loss or a weight is NaN or infinite."""


class Channel:
    """The pipe on which any process of a trial writes events."""

    def __init__(self, path: str | Path) -> None:
        """Raise OSError if no process reads the pipe: to wait for a runner that has died would block for ever."""
        self._pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(self._pipe, True)

    @classmethod
    def from_environment(cls) -> Channel:
        """Return the channel of the trial to which this worker belongs."""
        return cls(os.environ["TRAINOFF_EVENTS"])

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event with the time. If the line is too long, the longest text is truncated at its beginning."""
        event = {"t": time.monotonic(), "kind": kind, **fields}
        line = json.dumps(event)
        while len(line) >= PIPE_BUF:
            texts = [key for key in fields if isinstance(event[key], str) and event[key]]
            if not texts:
                raise ValueError(f"an event of {len(line)} bytes does not fit; at most {PIPE_BUF} do")
            longest = max(texts, key=lambda key: len(event[key]))
            event[longest] = event[longest][len(event[longest]) // 4 + 1 :]
            line = json.dumps(event)
        with suppress(BrokenPipeError):  # the runner is gone, and the supervisor ends the trial
            os.write(self._pipe, line.encode() + b"\n")

    say = emit  # the former name, which plug-ins use


class TrialWatch:
    """The watch of a real trial: emits phases and progress, writes snapshots, applies the stop rule."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self.should_stop = False
        self.failed_in: str | None = None  # the phase in which an exception passed through
        self._channel = channel
        self._folder = folder
        self._phases = ["import"]
        self._train_start = self._paused_s = 0.0
        self._pause_start: float | None = None
        self._bytes_before: int | None = None  # over the network before the pause
        self._step = self._samples_seen = self._snapshots = 0
        self._loss: float | None = None
        self._next_progress = 0.0

    def prepare(self, order: Order, parameters: int, snapshot_every: int, stop: Mapping[str, Any] | None) -> None:
        """Prepare for a training: its steps, its number of weights, its snapshots and its stop rule."""
        self._order, self._buffer = order, SnapshotBuffer(parameters)
        self.snapshot_schedule = SnapshotSchedule(order, snapshot_every)
        self._channel.emit("expected", samples=order.samples_after(order.steps))
        self._stop = StopRule(stop["tol"], stop["patience"]) if stop else None

    @property
    def pace(self) -> SnapshotSchedule:
        """The former name of `snapshot_schedule`, which third parties' engines may use."""
        return self.snapshot_schedule

    @property
    def current(self) -> str:
        """The current phase."""
        return self._phases[-1]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name not in PHASES:
            raise ValueError(f"`{name}` is not a phase; the phases are {', '.join(PHASES)}")
        self._phases.append(name)
        self._emit_phase()
        if name == "train":
            self._train_start = time.monotonic()
        try:
            yield
        except BaseException:
            self.failed_in = self.failed_in or name
            raise
        finally:
            if name == "train":
                self._emit_progress()
            self._phases.pop()
            self._emit_phase()

    def _emit_phase(self) -> None:
        self._channel.emit(
            "phase", name=self._phases[-1], process_cpu_s=time.process_time(), network_bytes=network_bytes()
        )

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None:
        seen_before = self._samples_seen
        self._pause_start = None  # a snapshot that was due but not taken pauses nothing
        self._step, self._loss = step, loss
        self._samples_seen = self._order.samples_after(step) if samples_seen is None else samples_seen
        if loss is not None and loss - loss != 0:  # NaN or infinite
            raise Diverged(f"the loss became {loss} at step {step}")
        if self._stop and loss is not None:
            epoch_ends = step % self._order.steps_per_epoch == 0
            self.should_stop = self._stop.seen(loss, self._samples_seen - seen_before, epoch_ends)
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_S
            self._emit_progress()

    def _emit_progress(self) -> None:
        self._channel.emit("progress", step=self._step, samples_seen=self._samples_seen, loss=self._loss)

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        wanted = self.snapshot_schedule.wanted(self._step, self._samples_seen) or self.should_stop
        if wanted:
            if settle:
                settle()
            self._pause_start, self._bytes_before = time.monotonic(), network_bytes()
        return wanted

    def snapshot(self, samples_seen: int, weights: Weights) -> None:
        if self._pause_start is None:
            self._bytes_before = network_bytes()
        start = self._pause_start or time.monotonic()
        self._buffer.fill(weights)
        self._snapshots += 1
        name = f"snapshot-{self._snapshots:04d}.f32"
        self._buffer.write(self._folder / name)
        self.snapshot_schedule.taken(samples_seen)
        self._channel.emit(
            "snapshot",
            step=self._step,
            samples_seen=samples_seen,
            train_s=start - self._train_start - self._paused_s,
            loss=self._loss,
            file=name,
        )
        if not self._buffer.finite:
            raise Diverged(f"a weight is no longer finite after step {self._step}")
        pause = time.monotonic() - start
        self._paused_s += pause
        self._pause_start = None
        sent = (network_bytes() or 0) - (self._bytes_before or 0)
        self._channel.emit("pause", seconds=pause, network_bytes=sent)

    def lost(self, who: str, redone: int = 0, ago_s: float = 0.0) -> None:
        self._channel.emit("lost", role=who, samples=redone, ago_s=round(ago_s, 3))

    def count(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"count({name!r}, {value}): a count is a finite number")
        self._channel.emit("count", name=name, value=float(value))

    def objective(self, step: int, samples_seen: int, train_s: float, loss: float) -> None:
        self._channel.emit("objective", step=step, samples_seen=samples_seen, train_s=train_s, loss=loss)

    def breakdown(self, name: str, figures: Mapping[str, float]) -> None:
        for part, value in figures.items():  # one by one: together they may not fit into an event
            if not math.isfinite(value):
                raise ValueError(f"breakdown({name!r}, {{{part!r}: {value}}}): a figure is a finite number")
            self._channel.emit("breakdown", name=name, part=part, value=float(value))

    def task(self, worker: str, start_s: float, end_s: float) -> None:
        if not math.isfinite(start_s + end_s):
            raise ValueError(f"task({worker!r}, {start_s}, {end_s}): a moment is a finite number")
        self._channel.emit("task", worker=worker, start_s=round(start_s, 6), end_s=round(end_s, 6))

    def page(self, name: str, host: str, port: int) -> None:
        open_in_namespace(self._folder / f"page-{name}", host, port)
        self._channel.emit("page", name=name)

    def note(self, name: str, text: str) -> None:
        self._channel.emit("note", name=name, text=text)


class StopRule:
    """Ends training as scikit-learn does: when the loss of an epoch has not improved by `tol` for `patience` epochs."""

    def __init__(self, tol: float, patience: int) -> None:
        self._tol, self._patience = tol, patience
        self._best = float("inf")
        self._without = 0
        self._sum = 0.0
        self._rows = 0

    def seen(self, loss: float, rows: int, epoch_ends: bool) -> bool:
        """Add the mean loss of a batch; return at the end of an epoch whether to stop."""
        self._sum += loss * rows
        self._rows += rows
        if not epoch_ends:
            return False
        mean = self._sum / self._rows
        self._without = self._without + 1 if mean > self._best - self._tol else 0
        self._best = min(self._best, mean)
        self._sum, self._rows = 0.0, 0
        return self._without > self._patience


TRIAL_NETWORK = "TRAINOFF_OWN_NETWORK"  # set by the supervisor for the trial's processes
LOOPBACK_ONLY, LAB = "loopback", "lab"  # the kinds of network
SUPERVISOR_DEVICES = Path("/proc/1/net/dev")  # with the lab's bridge


def network_bytes() -> int | None:
    """Return the bytes over the trial's network since it began (in a lab: between nodes); None if it is shared."""
    kind = os.environ.get(TRIAL_NETWORK)
    if kind is None:
        return None
    if kind == LAB:
        return sum(sent for sent, _ in node_traffic(SUPERVISOR_DEVICES).values())
    import psutil

    return int(psutil.net_io_counters(nowrap=False).bytes_recv)


TrainStep = Callable[[int, "NDArray[np.int64]", float], "float | None"]


def train_loop(job: Job, watch: Watch, train_step: TrainStep, weights: Callable[[], Weights]) -> None:
    """Make every step of the job and report it to the watch.

    `train_step(step, rows, rate)` makes one and returns the loss before it, if it is known; `weights()` fetches the
    weights for a snapshot.
    """
    for step, rows in job.order.batches():
        watch.progress(step, train_step(step, rows, float(job.rates[step - 1])))
        if watch.due():
            watch.snapshot(job.order.samples_after(step), weights())
        if watch.should_stop:
            break


walk = train_loop  # the former name, which plug-ins use


def seconds_by_worker(every: NDArray[np.float64], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the seconds of each worker by activity, given the times of every worker in every step.

    The times of a step are its seconds, those of synchronising and, where rows are fed, those of waiting for them. The
    worker that comes last synchronises fastest; what the others take longer is waiting.
    """
    import numpy as np

    syncing = every[..., 1]
    parts = {
        "computing_s": (every[..., 0] - syncing).sum(1),
        "communicating_s": np.full(len(every), syncing.min(0).sum()),
    }
    if every.shape[-1] > 2:
        parts["feeding_s"] = every[..., 2].sum(1)
    return {what: dict(zip(names, map(float, values), strict=True)) for what, values in parts.items()}
