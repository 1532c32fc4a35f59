"""Recovery from lost workers: heartbeats, restarts and their cost, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.clusters.local import crowded
from trainoff.data.batch_order import spans
from trainoff.engines.contract import Job, Knob, Watch
from trainoff.engines.shared.control_channel import READY_S, ConnectionLost, ControlServer
from trainoff.engines.shared.shipping import allreduce_bytes
from trainoff.files import atomic_open

if TYPE_CHECKING:
    from trainoff.data import Order
    from trainoff.engines.shared.control_channel import ControlClient
    from trainoff.models import Weights

MAX_RESTARTS = 3  # by torchrun or Ray Train; trainoff makes no more after these, theirs included


class Recovery:
    """The driver's side of a training that survives the loss of workers.

    torchrun and Ray Train restart the workers by themselves when one has died; the chief's connection is then lost and
    a new one awaited. `check` raises if the training cannot continue, and RestartRequired if that did not suffice. Only
    then, or if all processes live but no step is made, every process is restarted with `restart`.
    """

    def __init__(
        self,
        job: Job,
        watch: Watch,
        host: str,
        checkpoints: CheckpointWriter,
        check: Callable[[], None],
        restart: Callable[[], None],
    ) -> None:
        self._job, self._watch, self._checkpoints = job, watch, checkpoints
        self._check_workers, self._restart = check, restart
        self.server = ControlServer(host, self._check, explain_s=0.0)
        self._heartbeat = Heartbeat()
        self.finished = False  # whether all steps are made

    def wait_for(self, state: str) -> None:
        """Wait until the chief reports a state, also where workers are restarted meanwhile."""
        while True:
            try:
                return self.server.wait_for(state, crowded(READY_S, self._job.workers))
            except (ConnectionLost, RestartRequired) as error:
                self._recover(error)

    def run(self) -> None:
        """Follow the training to its end, and record what the losses cost."""
        watch, ready = self._watch, True
        while not self.finished:
            try:
                if not ready:
                    self.wait_for("ready")
                self._heartbeat.reset()
                self._heartbeat.active = True
                self.server.follow(self._job, watch, self._heartbeat.step_done)
                self.finished = True
            except (ConnectionLost, RestartRequired) as error:
                self._recover(error)
                ready = False
        self._heartbeat.active = False
        rounds = sum(1 for _ in spans(self._job.order, self._job.params.get("tau", 1)))
        counts = {"rounds": rounds, "least_bytes_per_round": allreduce_bytes(self._job, self._job.workers)}
        for name, value in self._heartbeat.losses.counts(counts).items():
            watch.count(name, value)

    def _recover(self, error: ConnectionLost | RestartRequired) -> None:
        """Prepare for the workers to continue from the last checkpoint; raise if they will not.

        After ConnectionLost torchrun or Ray Train restarts them, after RestartRequired (or TrainingStuck) this method.
        """
        noticed = time.monotonic()
        self.server.check_reports()
        try:
            self._check_workers()
        except RestartRequired as lost:
            error = lost
        losses = self._heartbeat.losses
        losses.record_loss(self._heartbeat.last)
        self.server.disconnect()
        if isinstance(error, RestartRequired):
            if losses.count > MAX_RESTARTS:
                raise error
            self._restart()
        self._heartbeat.rewind(self._checkpoints, self._job.order, self._watch, "worker", noticed)

    def _check(self) -> None:
        """Raise if a worker failed, if the training cannot continue, or if no step is made."""
        self.server.check_reports()
        self._check_workers()
        self._heartbeat.check()


FIRST_S = 60.0  # timeout of the first step
STUCK_S = 15.0  # without a step the training is stuck after this time ...
STUCK_TIMES = 20  # ... or after this many times the longest step, if that is longer


class RestartRequired(Exception):
    """A process was lost without which the training cannot continue."""


class TrainingStuck(RestartRequired):
    """All processes live, but no step has been made for long."""


class Heartbeat:
    """The time of the last step, whether the training is stuck, and its losses of workers."""

    def __init__(self) -> None:
        self.losses = LostWorkers()
        self.step, self.last = 0, time.monotonic()
        self.active = False  # whether steps are expected
        self._longest = 0.0

    def reset(self) -> None:
        """Count the time from now."""
        self.last = time.monotonic()

    def step_done(self, step: int) -> None:
        """Record a step, unless it is the last one again."""
        if step == self.step:
            return
        now = time.monotonic()
        self._longest = max(self._longest, now - self.last)
        self.step, self.last = step, now
        self.losses.recovered(now)

    def rewind(self, checkpoints: CheckpointWriter, order: Order, watch: Watch, role: str, noticed: float) -> None:
        """Go back to the last checkpoint after the loss of a worker, which is reported to the watch."""
        resume = checkpoints.load()
        kept, seen = len(resume.done) if resume else 0, order.samples_after
        self.losses.add_redone(self.step - kept)
        watch.lost(role, max(0, seen(self.step) - seen(kept)), time.monotonic() - noticed)
        self.active, self.step = False, kept

    def check(self) -> None:
        """Raise TrainingStuck if steps are expected and none was made for too long."""
        timeout_s = max(STUCK_S, STUCK_TIMES * self._longest) if self._longest else FIRST_S
        if self.active and time.monotonic() - self.last > timeout_s:
            raise TrainingStuck(f"no step was made for {timeout_s:.0f} s after step {self.step}")


class LostWorkers:
    """How often a training was restarted, and what that cost."""

    def __init__(self) -> None:
        self.count = 0
        self._figures = dict.fromkeys(("detection_s", "recovery_s", "steps_redone"), 0.0)
        self._noticed: float | None = None

    def record_loss(self, last_step: float) -> None:
        """Record a loss that is noticed now; the last step was made at that time."""
        now = time.monotonic()
        self._figures["detection_s"] += now - last_step
        self._noticed = self._noticed or now  # a loss during a recovery prolongs it
        self.count += 1

    def add_redone(self, steps: int) -> None:
        """Add steps that must be made again."""
        self._figures["steps_redone"] += max(0, steps)

    def recovered(self, now: float) -> None:
        """Record a step; the first one after a loss ends the recovery."""
        if self._noticed:
            self._figures["recovery_s"] += now - self._noticed
            self._noticed = None

    def counts(self, reported: Mapping[str, float]) -> dict[str, float]:
        """Return the figures for the record, added to those that the chief reported."""
        if not self.count:
            return dict(reported)
        figures = {"restarts": float(self.count), **self._figures}
        return {name: reported.get(name, 0.0) + figures.get(name, 0.0) for name in {**reported, **figures}}


POLL_S = 0.5


def run_with_polling(work: Callable[[], Any], poll: Callable[[], None]) -> Any:
    """Call `work` in a thread, and `poll` every half second until it returns."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    try:
        while not future.done():
            poll()
            wait([future], POLL_S)
        return future.result()
    finally:
        pool.shutdown(wait=False)  # if `poll` raised, closing the session ends the work


CHECKPOINT = Knob(
    int, 500, "updates between two checkpoints, from which training goes on after a loss; 0: none", minimum=0
)


def settle_checkpoints(values: dict[str, Any]) -> dict[str, Any]:
    """Turn checkpoints off on hosts: a worker that restarts on one would not find those written on another's disk."""
    return {**values, "checkpoint_every": 0} if values["kind"] == "hosts" else values


@dataclass(frozen=True)
class Checkpoint:
    """The state after some updates: all that a step changes, and which batches have been seen."""

    state: list[NDArray[Any]]
    done: frozenset[int] = field(default_factory=frozenset)


class CheckpointWriter:
    """Writes checkpoints: a new one replaces the old one only when it is complete."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self._every = path, every
        self._saved = 0

    def due(self, updates: int) -> bool:
        """Return whether enough updates have been made since the last checkpoint."""
        return bool(self._every) and updates - self._saved >= self._every

    def save(self, state: Sequence[Any], done: Collection[int]) -> None:
        """Fetch the state and write it."""
        arrays = {f"state{number}": part.numpy() for number, part in enumerate(state)}
        with atomic_open(self.path) as file:
            np.savez(file, done=np.array(sorted(done), np.int64), **arrays)
        self._saved = len(done)

    def step_done(
        self,
        chief: ControlClient | None,
        order: Order,
        step: int,
        loss: float,
        weights: Callable[[], Weights],
        state: Callable[[], Sequence[Any]],
    ) -> None:
        """On the chief, report that all steps up to this one are done, and save the state if a checkpoint is due.

        Other workers record the checkpoint, and take part if fetching the state is a collective call.
        """
        due = self.due(step) and step < order.steps
        if chief:
            if due:
                chief.report_now()  # the driver must know of every step that a checkpoint holds
            chief.progress(step, loss, weights)
        if due:
            values = state()
            if chief:
                self.save(values, range(1, step + 1))
            self._saved = step

    def load(self) -> Checkpoint | None:
        """Return the last checkpoint, if there is one."""
        if not (self._every and self.path.exists()):
            return None
        with np.load(self.path) as stored:
            state = [stored[f"state{number}"] for number in range(len(stored.files) - 1)]
            done = frozenset(stored["done"].tolist())
        self._saved = len(done)
        return Checkpoint(state, done)
