"""TensorFlow on several processes: tf-allreduce, and tf-ps with parameter servers and a coordinator.

allreduce_worker  a worker of tf-allreduce
coordinator       the process that leads tf-ps, in one of three modes
ps_modes          the modes async and sync; `pipeline` is model-parallel
ps_context        what every mode works with, and the variables on the parameter servers
gradients         what a worker computes: the gradients of its rows
serve             the process of a worker or a parameter server
"""

from __future__ import annotations

import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.clusters.local import crowded, free_ports
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed
from trainoff.engines.shared.control_channel import ControlServer
from trainoff.engines.shared.recovery import (
    CHECKPOINT,
    CheckpointWriter,
    Heartbeat,
    LostWorkers,
    RestartRequired,
    TrainingStuck,
    settle_checkpoints,
)
from trainoff.engines.shared.shipping import compact, in_file, to_files
from trainoff.engines.tensorflow import TensorFlow
from trainoff.engines.tf_cluster.coordinator import PsAssignment
from trainoff.engines.tf_cluster.serve import LISTENING
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trainoff.clusters import Process
    from trainoff.data import Matrix
    from trainoff.study import Trial


READY_S = 300.0  # every process loads TensorFlow, and several may share a core
EXPLAIN_S = 5.0  # how long after an error a process may take to be seen dead
MOST_RESTARTS = 5
ALL = ("worker", "ps", "coordinator")  # the roles, or their beginnings
KILLED = (-signal.SIGKILL, -signal.SIGTERM)  # ended from outside, and not by a mistake of its own
GIVEN_UP = "stopped sending heartbeats"  # TensorFlow's words where one was silent for 10 s: all others end, too


class TfClusterEngine(Engine):
    """TensorFlow on several processes. A subclass says which processes there are."""

    package = TensorFlow.package
    extra = TensorFlow.extra
    modules = TensorFlow.modules
    models = TensorFlow.models
    leader: ClassVar[str]  # the role of the process that speaks with the driver

    def vital(self, mode: str) -> tuple[str, ...]:
        """The roles, or their beginnings, without which training cannot go on."""
        return ALL

    def luggage(self, job: Job) -> Job:
        """The job with the rows as the workers will hold them."""
        return job

    def version(self) -> str:
        return TensorFlow().version()

    def refuses(self, trial: Trial) -> str | None:
        return self.refuses_stop(trial) or self.refuses_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        self._job, self._watch, self._snapshot_schedule = job, watch, watch.snapshot_schedule
        with watch.phase("ship"):
            self._sent = to_files(self.luggage(job))
        self._checkpoints = CheckpointWriter(job.folder / "checkpoint.npz", job.params["checkpoint_every"])
        self._processes: list[Process] = []
        self._lost_workers = LostWorkers()
        self._heartbeat = Heartbeat()
        self._over = False
        while not self._prepared(watch):
            pass

    def _prepared(self, watch: Watch) -> bool:
        """Start everything up to the sign to start; False if a process was lost on the way and another try is due."""
        self._heartbeat.reset()
        with watch.phase("cluster_start"):
            so_far = self._try(self._gather) and self._try(self._wait_until, "connected")
        with watch.phase("ship"):
            so_far = so_far and self._try(self._wait_until, "shipped")
        with watch.phase("compile"):
            return so_far and self._try(self._wait_until, "ready")

    def _try(self, work: Callable[..., None], *words: str) -> bool:
        """Do it; False if a process was lost and all should be started again."""
        try:
            work(*words)
        except (RestartRequired, TrainoffError) as error:
            self._lose(error)
            return False
        return True

    def _wait_until(self, word: str) -> None:
        self._line.wait_for(word, crowded(READY_S, self._job.workers))

    def _gather(self) -> None:
        """Start all processes, and a line to the one that leads."""
        self._line = ControlServer(self._job.cluster.driver_node.address, self._check)
        self.start(self._job)

    def start(self, job: Job) -> None:
        """Start all processes with `spawn`."""
        raise NotImplementedError

    def spawn(self, node: int, argv: list[str], role: str) -> Process:
        """Start one process of the training."""
        cluster = self._job.cluster
        process = cluster.spawn(cluster.place(node), argv, {}, role)
        self._processes.append(process)
        return process

    def assignment(self, addresses: dict[str, list[str]]) -> Path:
        """A file that says to the processes what there is to do."""
        path = self._job.folder / "assignment"
        path.touch(mode=0o600)  # it holds the secret of the line
        given = PsAssignment(self._sent, self._snapshot_schedule, self._line.endpoint, addresses, self._checkpoints)
        path.write_bytes(pickle.dumps(given))
        return path

    def train(self, job: Job, watch: Watch) -> None:
        ready = True
        while True:
            self._heartbeat.reset()
            try:
                if not ready:
                    self._gather()
                    self._wait_until("ready")
                self._heartbeat.reset()
                self._heartbeat.active = True
                _, report = self._line.follow(job, watch, self._hear)
                break
            except (RestartRequired, TrainoffError) as error:
                self._lose(error)
                ready = False
        self._heartbeat.active, self._over = False, True
        for name, value in self._lost_workers.counts(report["counts"]).items():
            watch.count(name, value)
        for name, values in report["breakdowns"].items():
            watch.breakdown(name, values)

    def _hear(self, step: int) -> None:
        """So many steps are done."""
        if self._heartbeat.step_done(step):
            self._lost_workers.recovered(self._heartbeat.last)

    def _lose(self, error: Exception) -> None:
        """End what is left, so that all can be started anew from the last checkpoint; raises if that would not help."""
        noticed = time.monotonic()
        self._lost_workers.record_loss(self._heartbeat.last)
        if self._lost_workers.count > MOST_RESTARTS or not (isinstance(error, TrainingStuck) or self._was_lost()):
            raise self._explain(error) from error
        gone = next((each.role for each in self._processes if each.exit_code not in (None, 0)), "worker")
        self._stop()
        resume = self._checkpoints.load()
        kept, seen = len(resume.done) if resume else 0, self._job.order.samples_after
        self._lost_workers.add_redone(self._heartbeat.step - kept)
        self._watch.lost(gone, max(0, seen(self._heartbeat.step) - seen(kept)), time.monotonic() - noticed)
        self._heartbeat.active, self._heartbeat.step = False, kept

    def _check(self) -> None:
        """Raise if somebody is gone, or if nothing has been heard of the training for too long."""
        vital = self._vital()
        for process in self._processes:
            if process.exit_code not in (None, 0) and process.role.startswith(vital):
                raise RestartRequired(f"{process.role} ended with code {process.exit_code}")
        self._heartbeat.check()

    def _vital(self) -> tuple[str, ...]:
        """The roles that cannot be done without just now: all while they prepare, at the end only who leads."""
        if self._over:
            return (self.leader,)
        return self.vital(self._job.mode) if self._heartbeat.active else ALL

    def _was_lost(self) -> bool:
        """Whether a process is seen killed or was given up, now or in a moment: errors of others only came of it."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            if any(process.exit_code in KILLED for process in self._processes):
                return True
            if any(process.exit_code and GIVEN_UP in process.tail() for process in self._processes):
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
        found: NDArray[np.int64] = self._line.request(in_file(x, self._job.folder, "x_asked"))
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


PROGRAM = "trainoff.engines.tf_cluster.allreduce_worker"


class TfAllReduce(TfClusterEngine):
    """Data-parallel TensorFlow: every step's gradients are summed over all workers."""

    name = "tf-allreduce"
    about = "TensorFlow's MultiWorkerMirroredStrategy: a process per worker, gradients summed around a ring"
    modes = ("sync",)
    leader = "worker-0"
    knobs: ClassVar[Mapping[str, Knob]] = {"checkpoint_every": CHECKPOINT}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return settle_checkpoints(values)

    def start(self, job: Job) -> None:
        hosts = [job.cluster.place(number).address for number in range(job.workers)]
        ports = free_ports(hosts)
        path = self.assignment({"worker": [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]})
        for number in range(job.workers):
            self.spawn(number, [sys.executable, "-m", PROGRAM, str(path), str(number)], f"worker-{number}")


SERVER = "trainoff.engines.tf_cluster.serve"
COORDINATOR = "trainoff.engines.tf_cluster.coordinator"
OF_MODE = {"max_staleness": "async", "staleness_aware": "async", "backup_workers": "sync"}


class TfPs(TfClusterEngine):
    """The weights lie on servers; each worker pulls them, computes, and pushes what is to change."""

    name = "tf-ps"
    about = "TensorFlow with parameter servers: asynchronous, synchronous, or layers on different workers"
    modes = ("async", "sync", "model-parallel")
    leader = "coordinator"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "ps": Knob(int, 1, "how many parameter servers hold the weights", minimum=1),
        "max_staleness": Knob(
            int,
            None,
            "async: how many updates a gradient may have missed at most; no bound by default",
            minimum=0,
        ),
        "staleness_aware": Knob(bool, False, "async: whether the rate is divided by 1 + the updates a gradient missed"),
        "backup_workers": Knob(int, 0, "sync: how many of the slowest workers are left out of every step", minimum=0),
        "checkpoint_every": CHECKPOINT,
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """What belongs to another mode is as if it had not been said."""
        idle = {name for name, mode in OF_MODE.items() if mode != values["mode"]}
        return settle_checkpoints({**values, **{name: self.knobs[name].default for name in idle}})

    def vital(self, mode: str) -> tuple[str, ...]:
        return ("ps", "coordinator") if mode == "async" else super().vital(mode)

    def luggage(self, job: Job) -> Job:
        """Every worker holds all rows: pictures as bytes, which is a quarter of them as floats."""
        return job if job.data.sparse else replace(job, data=replace(job.data, x_train=compact(job.data.x_train)))

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["backup_workers"] >= trial.workers:
            return f"backup_workers = {trial.params['backup_workers']} leaves none of {trial.workers} workers"
        if trial.mode == "model-parallel" and trial.model == "logreg":
            return "logistic regression is one layer with one output, so there is nothing to lay on several workers"
        if trial.mode == "model-parallel" and (refused := refuses_division(trial)):
            return refused
        return super().refuses(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.mode == "async" and trial.workers > 1:
            return "each worker's gradient is of weights that others may have changed meanwhile"
        if trial.params["backup_workers"]:
            return f"the slowest {trial.params['backup_workers']} of the workers are left out of every step"
        return None

    def start(self, job: Job) -> None:
        nodes = len(job.cluster.nodes)
        workers = [self._serve("worker", number, number, job) for number in range(job.workers)]
        servers = [self._serve("ps", number, number % nodes, job) for number in range(job.params["ps"])]
        addresses = {kind: [*map(self._address, each)] for kind, each in (("worker", workers), ("ps", servers))}
        host = job.cluster.nodes[0].address
        addresses["chief"] = [f"{host}:{free_ports([host])[0]}"]
        self.spawn(0, [sys.executable, "-m", COORDINATOR, str(self.assignment(addresses))], "coordinator")

    def _serve(self, kind: str, number: int, node: int, job: Job) -> tuple[str, Process]:
        threads = ceil(job.cores)
        host = job.cluster.place(node).address
        argv = [sys.executable, "-m", SERVER, kind, str(number), str(threads), host]
        return host, self.spawn(node, argv, f"{kind}-{number}")

    def _address(self, server: tuple[str, Process]) -> str:
        """Where a server listens, once it does."""
        host, process = server
        process.wait_ready(lambda each: each.says(LISTENING), crowded(READY_S, self._job.workers))
        return f"{host}:{process.log_text().rpartition(LISTENING)[2].split()[0]}"


def refuses_division(trial: Trial) -> str | None:
    """Why a network cannot be laid on so many workers, or None."""
    if trial.workers > sum(trial.params["hidden"]):
        return f"{trial.workers} workers are more than the network has outputs to divide"
    return None
