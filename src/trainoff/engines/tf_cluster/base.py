"""What both engines do alike: start the processes, follow the one that leads, and begin again after a loss."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING

from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed
from trainoff.engines.handover import hand_over, in_file
from trainoff.engines.line import Driver
from trainoff.engines.tensorflow import TensorFlow
from trainoff.engines.tf_cluster.checkpoint import Keeper
from trainoff.engines.tf_cluster.coordinator import Assignment
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trainoff.clusters import Process
    from trainoff.data import Matrix
    from trainoff.study import Trial

READY_S = 300.0  # every process loads TensorFlow, and several may share a core
EXPLAIN_S = 2.0  # how long after an error a process may take to be seen dead
MOST_RESTARTS = 5
STUCK_S = 15.0  # without a step the training is given up after this time ...
STUCK_TIMES = 20  # ... or after so many times the longest that a sign of life has taken, if that is longer
CHECKPOINT = Knob(
    int, 500, "updates between two checkpoints, from which training goes on after a loss; 0: none", minimum=0
)


class Lost(Exception):
    """A process is gone without which the training cannot go on."""


class Stuck(Lost):
    """All processes live, but no step has been made for long."""


class Losses:
    """How often a training began again, and what that cost it."""

    def __init__(self) -> None:
        self.count = self._redone = 0
        self._detection_s = self._recovery_s = 0.0
        self._noticed: float | None = None

    def begin(self, heard: float) -> None:
        """Something is lost; the last sign of life came at that time."""
        self._noticed = time.monotonic()
        self._detection_s += self._noticed - heard
        self.count += 1

    def redo(self, steps: int) -> None:
        self._redone += steps

    def over(self, now: float) -> None:
        """A step has been made; the first one after a loss ends the recovery."""
        if self._noticed:
            self._recovery_s += now - self._noticed
            self._noticed = None

    def tell(self, watch: Watch) -> None:
        if self.count:
            watch.count("restarts", self.count)
            watch.count("detection_s", self._detection_s)
            watch.count("recovery_s", self._recovery_s)
            watch.count("steps_redone", self._redone)


class TfClusterEngine(Engine):
    """TensorFlow on several processes. A subclass says which processes there are."""

    package = TensorFlow.package
    extra = TensorFlow.extra
    modules = TensorFlow.modules
    models = TensorFlow.models

    def vital(self, mode: str) -> tuple[str, ...]:
        """The roles, or their beginnings, without which training cannot go on."""
        return ("worker", "ps", "coordinator")

    def version(self) -> str:
        return TensorFlow().version()

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["stop"]:
            return f"{self.name} makes every step of its epochs; leave `stop` out"
        rows, workers = trial.params["batch_size"], trial.workers
        if trial.mode == "sync" and rows < workers:
            return f"a batch of {rows} rows cannot be shared by {workers} workers"
        return self.refuses_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        self._job, self._pace = job, watch.pace
        self._sent = hand_over(job)
        self._keeper = Keeper(job.folder / "checkpoint.npz", job.params["checkpoint_every"])
        self._processes: list[Process] = []
        self._step, self._heard, self._longest = 0, time.monotonic(), 0.0
        with watch.phase("cluster_start"):
            self._gather()
            self._line.wait_for("connected", READY_S)
        with watch.phase("ship"):
            self._line.wait_for("shipped", READY_S)
        with watch.phase("compile"):
            self._line.wait_for("ready", READY_S)

    def _gather(self) -> None:
        """Start all processes, and a line to the one that leads."""
        self._line = Driver("127.0.0.1", self._check)
        self.start(self._job)

    def start(self, job: Job) -> None:
        """Start all processes with `spawn`."""
        raise NotImplementedError

    def spawn(self, node: int, argv: list[str], role: str) -> Process:
        """Start one process of the training."""
        cluster = self._job.cluster
        process = cluster.spawn(cluster.nodes[node], argv, {}, role)
        self._processes.append(process)
        return process

    def assignment(self, addresses: dict[str, list[str]]) -> Path:
        """A file that says to the processes what there is to do."""
        path = self._job.folder / "assignment"
        path.touch(mode=0o600)  # it holds the secret of the line
        given = Assignment(self._sent, self._pace, self._line.number, addresses, self._keeper)
        path.write_bytes(pickle.dumps(given))
        return path

    def train(self, job: Job, watch: Watch) -> None:
        self._losses = Losses()
        while True:
            try:
                self._weights, report = self._line.follow(job, watch, self._hear)
                break
            except (Lost, TrainoffError) as error:
                self._losses.begin(self._heard)
                if self._losses.count > MOST_RESTARTS or not (isinstance(error, Stuck) or self._was_killed()):
                    raise self._explain(error) from error
                self._begin_again()
        self._step = 0
        self._losses.tell(watch)
        for name, value in report["counts"].items():
            watch.count(name, value)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def _hear(self, step: int) -> None:
        """So many steps are done: a sign of life, if it is not the same number again."""
        now = time.monotonic()
        if step != self._step:
            if self._step:
                self._longest = max(self._longest, now - self._heard)
            self._step, self._heard = step, now
            self._losses.over(now)

    def _begin_again(self) -> None:
        """End what is left of the processes, and start all anew from the last checkpoint."""
        self._stop()
        resume = self._keeper.load()
        self._losses.redo(self._step - len(resume.done) if resume else self._step)
        self._step = 0
        self._gather()
        self._line.wait_for("ready", READY_S)

    def _check(self) -> None:
        """Raise if somebody is gone, or if nothing has been heard of the training for too long."""
        for process in self._processes:
            if process.exit_code is not None and process.role.startswith(self.vital(self._job.mode)):
                raise Lost(f"{process.role} ended with code {process.exit_code}")
        patience = max(STUCK_S, STUCK_TIMES * self._longest)
        if self._step and time.monotonic() - self._heard > patience:
            raise Stuck(f"no step was made for {patience:.0f} s after step {self._step}")

    def _was_killed(self) -> bool:
        """Whether a process is seen killed, now or in a moment: then errors of others are only what came of it."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            if any((process.exit_code or 0) < 0 for process in self._processes):
                return True
            time.sleep(0.05)
        return False

    def _explain(self, error: Exception) -> Exception:
        """The words of the process that failed, where it left some."""
        for process in self._processes:
            if process.exit_code not in (None, 0):
                return WorkerFailed(process.role, process.tail() or str(error), process.tail())
        return error

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._line.ask(in_file(x, self._job.folder, "x_asked"))
        return found

    def _stop(self) -> None:
        if hasattr(self, "_line"):
            self._line.close()
        for process in self._processes:
            self._job.cluster.end(process)
        self._processes = []

    def close(self) -> None:
        if hasattr(self, "_processes"):
            self._stop()
