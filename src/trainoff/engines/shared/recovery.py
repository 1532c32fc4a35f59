"""Training through a loss: heartbeats, lost workers, checkpoints, and following the restarts of another system."""

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
from trainoff.engines.shared.control_channel import ConnectionLost, ControlServer, Endpoint
from trainoff.engines.shared.shipping import ring_bytes
from trainoff.files import atomic_open

if TYPE_CHECKING:
    from trainoff.engines.shared.control_channel import ControlClient
    from trainoff.models import Weights


READY_S = 300.0  # every process imports a framework, and several may share a core
MOST_RESTARTS = 3  # times that everything is started again


class Recovery:
    """A line to whoever leads.

    `check` raises if the training cannot go on, and Lost if it can once all is started anew. That is what `restart`
    does, also where all live but nothing goes on.
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
        self._check_others, self._restart = check, restart
        self._line = ControlServer(host, self._check, explain_s=0.0)
        self._losses, self._heartbeat = LostWorkers(), Heartbeat()
        self.over = False  # whether all steps are made

    @property
    def number(self) -> Endpoint:
        """Where the leader calls."""
        return self._line.number

    def wait_until(self, word: str) -> None:
        """Wait until all workers are so far, though they may have to be started again meanwhile."""
        while True:
            try:
                return self._line.wait_for(word, crowded(READY_S, self._job.workers))
            except (ConnectionLost, LeaderLost) as error:
                self._lose(error)

    def run(self) -> None:
        """Follow the training to its end, and tell what it was like."""
        watch, ready = self._watch, True
        while not self.over:
            try:
                if not ready:
                    self.wait_until("ready")
                self._heartbeat.await_beat()
                self._heartbeat.beating = True
                _, report = self._line.follow(self._job, watch, self._hear)
                self.over = True
            except (ConnectionLost, LeaderLost) as error:
                self._lose(error)
                ready = False
        self._heartbeat.beating = False
        for name, value in self._losses.counts(self._rounds()).items():
            watch.count(name, value)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def _rounds(self) -> dict[str, float]:
        job = self._job
        rounds = sum(1 for _ in spans(job.order, job.params.get("tau", 1)))
        return {"rounds": rounds, "least_bytes_per_round": ring_bytes(job, job.workers)}

    def _hear(self, step: int) -> None:
        """So many steps are done."""
        if self._heartbeat.feel(step):
            self._losses.over(self._heartbeat.heard)

    def _lose(self, error: ConnectionLost | LeaderLost) -> None:
        """Get ready for the workers to begin again from the last checkpoint; raises if they will not."""
        noticed = time.monotonic()
        self._line.check_reports()
        try:
            self._check_others()
        except LeaderLost as lost:
            error = lost
        self._losses.begin(self._heartbeat.heard)
        self._heartbeat.beating = False
        self._line.hang_up()
        if isinstance(error, LeaderLost):
            if self._losses.count > MOST_RESTARTS:
                raise error
            self._restart()
        resume = self._checkpoints.load()
        kept, seen = len(resume.done) if resume else 0, self._job.order.samples_after
        self._losses.redo(self._heartbeat.step - kept)
        self._watch.lost("worker", max(0, seen(self._heartbeat.step) - seen(kept)), time.monotonic() - noticed)
        self._heartbeat.step = kept

    def _check(self) -> None:
        """Raise if a worker made a mistake, if the training cannot go on, or if nothing goes on."""
        self._line.check_reports()
        self._check_others()
        self._heartbeat.check()

    def ask(self, question: Any) -> Any:
        """What the leader answers, after the end."""
        return self._line.ask(question)

    def close(self) -> None:
        """Hang up, which lets the leader end."""
        self._line.close()


FIRST_S = 60.0  # how long the first step may take
STUCK_S = 15.0  # without a step the training is given up after this time ...
STUCK_TIMES = 20  # ... or after so many times the longest that a sign of life has taken, if that is longer


class LeaderLost(Exception):
    """A process is gone without which the training cannot go on."""


class TrainingStuck(LeaderLost):
    """All processes live, but no step has been made for long."""


class Heartbeat:
    """Knows when a step was last heard of."""

    def __init__(self) -> None:
        self.step, self.heard = 0, time.monotonic()
        self.beating = False  # whether steps are expected
        self._longest = 0.0

    def await_beat(self) -> None:
        """Something is about to begin: count the time from here."""
        self.heard = time.monotonic()

    def feel(self, step: int) -> bool:
        """So many steps are done; says whether that is a sign of life, and not the same number again."""
        now = time.monotonic()
        if step == self.step:
            return False
        self._longest = max(self._longest, now - self.heard)
        self.step, self.heard = step, now
        return True

    def check(self) -> None:
        """Raise if steps are expected and nothing has been heard for too long."""
        patience = max(STUCK_S, STUCK_TIMES * self._longest) if self._longest else FIRST_S
        if self.beating and time.monotonic() - self.heard > patience:
            raise TrainingStuck(f"no step was made for {patience:.0f} s after step {self.step}")


class LostWorkers:
    """How often a training began again, and what that cost it."""

    def __init__(self) -> None:
        self.count = 0
        self._figures = dict.fromkeys(("detection_s", "recovery_s", "steps_redone"), 0.0)
        self._noticed: float | None = None

    def begin(self, heard: float) -> None:
        """Something is lost; the last sign of life came at that time."""
        now = time.monotonic()
        self._figures["detection_s"] += now - heard
        self._noticed = self._noticed or now  # where a recovery is itself lost, it goes on
        self.count += 1

    def redo(self, steps: int) -> None:
        """So many steps that had been made must be made again."""
        self._figures["steps_redone"] += max(0, steps)

    def over(self, now: float) -> None:
        """A step has been made; the first one after a loss ends the recovery."""
        if self._noticed:
            self._figures["recovery_s"] += now - self._noticed
            self._noticed = None

    def counts(self, told: Mapping[str, float]) -> dict[str, float]:
        """The figures for the record, added to those that the leader told of its own losses."""
        if not self.count:
            return dict(told)
        own = {"restarts": float(self.count), **self._figures}
        return {name: told.get(name, 0.0) + own.get(name, 0.0) for name in {**told, **own}}


BEAT_S = 0.5  # between two signs of life


def with_heartbeat(work: Callable[[], Any], beat: Callable[[], None]) -> Any:
    """Do something long aside, and say every half second that it is still being done."""
    aside = ThreadPoolExecutor(1)
    doing = aside.submit(work)
    try:
        while not doing.done():
            beat()
            wait([doing], BEAT_S)
        return doing.result()
    finally:
        aside.shutdown(wait=False)  # asked to end meanwhile, nobody waits for it: closing the session ends it


CHECKPOINT = Knob(
    int, 500, "updates between two checkpoints, from which training goes on after a loss; 0: none", minimum=0
)


def settle_checkpoints(values: dict[str, Any]) -> dict[str, Any]:
    """No checkpoints on hosts: who begins again on one would not find what another has written on its own disk."""
    return {**values, "checkpoint_every": 0} if values["kind"] == "hosts" else values


@dataclass(frozen=True)
class Checkpoint:
    """The state after some updates: all that a step changes, and which batches have been seen."""

    state: list[NDArray[Any]]
    done: frozenset[int] = field(default_factory=frozenset)


class CheckpointWriter:
    """Writes checkpoints: the new one replaces the old one only when it is whole."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self._every = path, every
        self._saved = 0

    def due(self, updates: int) -> bool:
        """Whether so many updates have been made since the last checkpoint that another one is wanted."""
        return bool(self._every) and updates - self._saved >= self._every

    def save(self, state: Sequence[Any], done: Collection[int]) -> None:
        """Fetch the state and write it."""
        arrays = {f"state{number}": part.numpy() for number, part in enumerate(state)}
        with atomic_open(self.path) as file:
            np.savez(file, done=np.array(sorted(done), np.int64), **arrays)
        self.saved(len(done))

    def saved(self, updates: int) -> None:
        """There is a checkpoint after so many updates, whoever has written it."""
        self._saved = updates

    def step_done(
        self, leader: ControlClient, step: int, loss: float, weights: Callable[[], Weights], state: Sequence[Any]
    ) -> None:
        """Tell that all steps up to this one are done, and save the state if it is time to."""
        due = self.due(step)
        if due:
            leader.hurry()  # so that the driver knows of every step that a checkpoint holds
        leader.progress(step, loss, weights)
        if due and step < leader.snapshot_schedule.order.steps:
            self.save(state, range(1, step + 1))

    def load(self) -> Checkpoint | None:
        """The last checkpoint, if there is one."""
        if not self.path.exists():
            return None
        with np.load(self.path) as stored:
            state = [stored[f"state{number}"] for number in range(len(stored.files) - 1)]
            done = frozenset(stored["done"].tolist())
        self.saved(len(done))
        return Checkpoint(state, done)
