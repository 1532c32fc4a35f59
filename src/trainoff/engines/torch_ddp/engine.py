"""torch-ddp: the driver's side. It starts torchrun, follows the worker that leads, and tells what losses cost."""

from __future__ import annotations

import pickle
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.data.order import spans
from trainoff.engines.averaging import TAU, differs
from trainoff.engines.checkpoint import CHECKPOINT, Keeper
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed
from trainoff.engines.handover import hand_over, in_file
from trainoff.engines.line import Driver, HungUp
from trainoff.engines.losses import Losses
from trainoff.engines.pulse import Pulse, Stuck
from trainoff.engines.torch import Torch
from trainoff.engines.torch.assignment import Assignment
from trainoff.engines.torch_ddp.start import FAILURE, start_agents

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trainoff.clusters import Process
    from trainoff.data import Matrix
    from trainoff.study import Trial

READY_S = 300.0  # every process imports torch, and several may share a core
END_S = 5.0  # how long torchrun may take to end when its workers have
RESTARTS = 3  # of all workers by torchrun, and of torchrun itself where nothing goes on
WEIGHT_BYTES = 4  # a float32


class TorchDdp(Engine):
    """PyTorch on several processes, started and joined by its own means."""

    name = "torch-ddp"
    about = "PyTorch's DistributedDataParallel by torchrun: a process per worker, gradients averaged over gloo"
    models = frozenset({"mlp", "cnn"})
    modes: ClassVar[tuple[str, ...]] = ("sync", "local")
    package = Torch.package
    extra = Torch.extra
    modules = Torch.modules
    knobs: ClassVar[Mapping[str, Knob]] = {"tau": TAU, "checkpoint_every": CHECKPOINT}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "tau": 1} if values["mode"] == "sync" else values

    def differs(self, trial: Trial) -> str | None:
        return differs(trial, trial.workers) if trial.mode == "local" else None

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["stop"]:
            return "torch-ddp makes every step of its epochs; leave `stop` out"
        rows, workers = trial.params["batch_size"], trial.workers
        return f"a batch of {rows} rows cannot be shared by {workers} workers" if rows < workers else None

    def open(self, job: Job, watch: Watch) -> None:
        self._job = job
        self._agents: list[Process] = []
        self._losses, self._pulse, self._trained = Losses(), Pulse(), False
        self._keeper = Keeper(job.folder / "checkpoint.npz", job.params["checkpoint_every"])
        self._line = Driver(job.cluster.nodes[0].address, self._check, explain_s=0.0)
        with watch.phase("ship"):
            self._assignment = self._assign(watch)
        with watch.phase("cluster_start"):
            self._start()
            self._wait_until("connected")
        with watch.phase("compile"):
            self._wait_until("ready")

    def _assign(self, watch: Watch) -> Path:
        """A file that says to the workers what there is to do."""
        path = self._job.folder / "assignment"
        path.touch(mode=0o600)  # it holds the secret of the line
        path.write_bytes(pickle.dumps(Assignment(hand_over(self._job), self._line.number, watch.pace, self._keeper)))
        return path

    def _start(self) -> None:
        self._agents = start_agents(self._job, self._assignment, RESTARTS)

    def _wait_until(self, word: str) -> None:
        """Wait until all workers are so far, though they may have to be started again meanwhile."""
        while True:
            try:
                return self._line.wait_for(word, READY_S)
            except HungUp as error:
                self._lose(error)

    def train(self, job: Job, watch: Watch) -> None:
        ready = True
        while True:
            try:
                if not ready:
                    self._wait_until("ready")
                self._pulse.await_beat()
                self._pulse.beating = True
                _, report = self._line.follow(job, watch, self._hear)
                break
            except (HungUp, Stuck) as error:
                self._lose(error)
                ready = False
        self._pulse.beating, self._trained = False, True
        self._tell(watch, report)

    def _tell(self, watch: Watch, report: Mapping[str, Any]) -> None:
        job = self._job
        rounds = sum(1 for _ in spans(job.order, job.params["tau"]))
        # Around a ring, every worker but one passes each number on, once to sum it up and once to tell the sum.
        least = 2 * (job.workers - 1) * WEIGHT_BYTES * job.model.parameters
        counts = self._losses.counts({"rounds": rounds, "least_bytes_per_round": least})
        for name, value in counts.items():
            watch.count(name, value)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def _hear(self, step: int) -> None:
        """So many steps are done."""
        if self._pulse.feel(step):
            self._losses.over(self._pulse.heard)

    def _lose(self, error: HungUp | Stuck) -> None:
        """Get ready for the workers to begin again from the last checkpoint; raises if they will not."""
        self._check_processes()
        self._losses.begin(self._pulse.heard)
        self._pulse.beating = False
        self._line.hang_up()
        if isinstance(error, Stuck):  # torchrun sees that all live, and would wait
            if self._losses.count > RESTARTS:
                raise error
            self._stop()
            self._start()
        resume = self._keeper.load()
        kept = len(resume.done) if resume else 0
        self._losses.redo(self._pulse.step - kept)
        self._pulse.step = kept

    def _check(self) -> None:
        """Raise if a worker made a mistake, if torchrun has given up, or if nothing goes on."""
        self._check_processes()
        self._pulse.check()

    def _check_processes(self) -> None:
        told = self._job.folder / FAILURE
        if told.exists():
            role, _, said = told.read_text().partition("\n")
            raise WorkerFailed(role, said, said)
        for agent in self._agents:
            if agent.exit_code not in (None, 0):
                raise WorkerFailed(agent.role, f"{agent.tail()}\n{end_of(agent)}".strip(), agent.tail())

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._line.ask(in_file(x, self._job.folder, "x_asked"))
        return found

    def close(self) -> None:
        if hasattr(self, "_line"):
            self._line.close()
            for agent in self._agents if self._trained else []:
                with suppress(subprocess.TimeoutExpired):
                    agent.wait(END_S)
            self._stop()

    def _stop(self) -> None:
        """End torchrun; its workers end with it."""
        for agent in self._agents:
            self._job.cluster.end(agent)
        self._agents = []


def end_of(agent: Process) -> str:
    """How it ended, if that is not in its log."""
    code = agent.exit_code or 0
    return f"torchrun was killed by {signal.Signals(-code).name}" if code < 0 else ""
