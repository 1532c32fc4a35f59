"""TensorFlow on several processes: tf-allreduce, and tf-ps with parameter servers and a coordinator.

allreduce_worker  a worker of tf-allreduce
coordinator       the process that coordinates tf-ps, in one of three modes
ps_modes          the modes async and sync; `pipeline` is model-parallel
ps_context        what every mode uses: the job, the variables on the parameter servers, the workers' gradients
serve             the process of a worker or a parameter server
"""

from __future__ import annotations

import pickle
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainoff.clusters.local import crowded, free_ports
from trainoff.engines.contract import Engine, Job, Knob, Watch, WorkerFailed, refuse_sparse_l2, refuse_stop
from trainoff.engines.shared.control_channel import READY_S, ControlServer
from trainoff.engines.shared.recovery import (
    CHECKPOINT,
    CheckpointWriter,
    Heartbeat,
    RestartRequired,
    TrainingStuck,
    settle_checkpoints,
)
from trainoff.engines.shared.shipping import compact, in_file, to_files
from trainoff.engines.tensorflow import TensorFlow
from trainoff.engines.tf_cluster.coordinator import TfAssignment
from trainoff.engines.tf_cluster.serve import LISTENING
from trainoff.errors import TrainoffError
from trainoff.models import LAYERED

if TYPE_CHECKING:
    from trainoff.clusters import Process
    from trainoff.data import Matrix
    from trainoff.study import Trial

EXPLAIN_S = 5.0  # how long after an error it may take until a process is seen to have ended
MAX_RESTARTS = 5  # not the 3 of `recovery`: here only trainoff restarts, not a framework, too
ALL_ROLES = ("worker", "ps", "coordinator")  # prefixes of the processes' roles
KILLED = (-signal.SIGKILL, -signal.SIGTERM)  # ended from outside, and not by an error
HEARTBEAT_LOST = "stopped sending heartbeats"  # TensorFlow logs it after 10 s of silence; all processes end then


class TfClusterEngine(Engine):
    """TensorFlow on several processes, which a subclass starts."""

    package = TensorFlow.package
    extra = TensorFlow.extra
    modules = TensorFlow.modules
    models = TensorFlow.models
    chief: ClassVar[str]  # the role of the process that reports to the driver

    def required_roles(self, mode: str) -> tuple[str, ...]:
        """Return prefixes of the roles without which training cannot go on."""
        return ALL_ROLES

    def worker_job(self, job: Job) -> Job:
        """Return the job with the rows as the workers hold them."""
        return job

    def version(self) -> str:
        return TensorFlow().version()

    def refuses(self, trial: Trial) -> str | None:
        return refuse_stop(trial) or refuse_sparse_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        self._job, self._watch = job, watch
        with watch.phase("ship"):
            self._worker_job = to_files(self.worker_job(job))
        self._checkpoints = CheckpointWriter(job.folder / "checkpoint.npz", job.params["checkpoint_every"])
        self._processes: list[Process] = []
        self._heartbeat = Heartbeat()
        self._finished = False
        while not self._prepare(watch):
            pass

    def _prepare(self, watch: Watch) -> bool:
        """Start all processes and wait until they can train; False if one was lost, and all must be restarted."""
        self._heartbeat.reset()
        for phase, state in (("cluster_start", "connected"), ("ship", "shipped"), ("compile", "ready")):
            with watch.phase(phase):
                try:
                    if state == "connected":
                        self._start_processes()
                    self._wait_for(state)
                except (RestartRequired, TrainoffError) as error:
                    self._recover(error)
                    return False
        return True

    def _wait_for(self, state: str) -> None:
        self._control.wait_for(state, crowded(READY_S, self._job.workers))

    def _start_processes(self) -> None:
        self._control = ControlServer(self._job.cluster.driver_node.address, self._check)
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
        """Write the processes' assignment to a file."""
        path = self._job.folder / "assignment"
        path.touch(mode=0o600)  # it holds the secret of the control channel
        schedule = self._watch.snapshot_schedule
        given = TfAssignment(self._worker_job, schedule, self._control.endpoint, addresses, self._checkpoints)
        path.write_bytes(pickle.dumps(given))
        return path

    def train(self, job: Job, watch: Watch) -> None:
        ready = True
        while True:
            self._heartbeat.reset()
            try:
                if not ready:
                    self._start_processes()
                    self._wait_for("ready")
                self._heartbeat.reset()
                self._heartbeat.active = True
                _, report = self._control.follow(job, watch, self._heartbeat.step_done)
                break
            except (RestartRequired, TrainoffError) as error:
                self._recover(error)
                ready = False
        self._heartbeat.active, self._finished = False, True
        for name, value in self._heartbeat.losses.counts(report["counts"]).items():
            watch.count(name, value)

    def _recover(self, error: Exception) -> None:
        """End the other processes for a restart from the last checkpoint; raise if a restart would not help."""
        noticed = time.monotonic()
        self._heartbeat.losses.record_loss(self._heartbeat.last)
        lost = isinstance(error, TrainingStuck) or self._process_was_killed()
        failed = next((each for each in self._processes if each.exit_code not in (None, 0)), None)
        if self._heartbeat.losses.count > MAX_RESTARTS or not lost:
            if failed:
                raise WorkerFailed(failed.role, failed.tail() or str(error), failed.tail()) from error
            raise error
        self.close()
        gone = failed.role if failed else "worker"
        self._heartbeat.rewind(self._checkpoints, self._job.order, self._watch, gone, noticed)

    def _check(self) -> None:
        """Raise if a required process has ended, or if the training is stuck."""
        required: tuple[str, ...] = ALL_ROLES  # until it trains
        if self._finished:
            required = (self.chief,)
        elif self._heartbeat.active:
            required = self.required_roles(self._job.mode)
        for process in self._processes:
            if process.exit_code not in (None, 0) and process.role.startswith(required):
                raise RestartRequired(f"{process.role} ended with code {process.exit_code}")
        self._heartbeat.check()

    def _process_was_killed(self) -> bool:
        """Return whether a process was killed or dropped by TensorFlow: errors of the others only follow from that."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            if any(process.exit_code in KILLED for process in self._processes):
                return True
            if any(process.exit_code and HEARTBEAT_LOST in process.tail() for process in self._processes):
                return True
            time.sleep(0.05)
        return False

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = self._control.request(in_file(x, self._job.folder, "x_predict"))
        return labels

    def close(self) -> None:
        """End all processes."""
        if hasattr(self, "_control"):
            self._control.close()
            for process in self._processes:
                self._job.cluster.end(process)
            self._processes = []


PROGRAMS = "trainoff.engines.tf_cluster"
KNOB_MODES = {"max_staleness": "async", "staleness_aware": "async", "backup_workers": "sync"}


class TfAllReduce(TfClusterEngine):
    """Data-parallel TensorFlow: every step's gradients are summed over all workers."""

    name = "tf-allreduce"
    about = "TensorFlow's MultiWorkerMirroredStrategy: a process per worker, gradients summed around a ring"
    modes = ("sync",)
    chief = "worker-0"
    knobs: ClassVar[Mapping[str, Knob]] = {"checkpoint_every": CHECKPOINT}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return settle_checkpoints(values)

    def start(self, job: Job) -> None:
        hosts = [job.cluster.place(index).address for index in range(job.workers)]
        ports = free_ports(hosts)
        path = self.assignment({"worker": [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]})
        argv = [sys.executable, "-m", f"{PROGRAMS}.allreduce_worker", str(path)]
        for index in range(job.workers):
            self.spawn(index, [*argv, str(index)], f"worker-{index}")


class TfPs(TfClusterEngine):
    """The weights are on servers; each worker pulls them, computes gradients, and pushes the updates."""

    name = "tf-ps"
    about = "TensorFlow with parameter servers: asynchronous, synchronous, or layers on different workers"
    modes = ("async", "sync", "model-parallel")
    chief = "coordinator"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "ps": Knob(int, 1, "how many parameter servers hold the weights", minimum=1),
        "max_staleness": Knob(int, None, "async: updates that a gradient may miss; no limit by default", minimum=0),
        "staleness_aware": Knob(bool, False, "async: whether the rate is divided by 1 + the updates a gradient missed"),
        "backup_workers": Knob(int, 0, "sync: how many of the slowest workers are left out of every step", minimum=0),
        "checkpoint_every": CHECKPOINT,
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """Reset the knobs of other modes to their defaults."""
        idle = {name for name, mode in KNOB_MODES.items() if mode != values["mode"]}
        return settle_checkpoints({**values, **{name: self.knobs[name].default for name in idle}})

    def required_roles(self, mode: str) -> tuple[str, ...]:
        return ("ps", "coordinator") if mode == "async" else super().required_roles(mode)

    def worker_job(self, job: Job) -> Job:
        """Every worker holds all rows: pictures as bytes, a quarter of the size of floats."""
        return job if job.data.sparse else replace(job, data=replace(job.data, x_train=compact(job.data.x_train)))

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["backup_workers"] >= trial.workers:
            return f"backup_workers = {trial.params['backup_workers']} leaves none of {trial.workers} workers"
        if trial.mode == "model-parallel" and trial.model not in LAYERED:
            return "logistic regression is one layer with one output, so it cannot be split over several workers"
        if trial.mode == "model-parallel" and (refused := refuses_split(trial)):
            return refused
        return super().refuses(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.mode == "async" and trial.workers > 1:
            return ASYNC_DIFFERS
        if trial.params["backup_workers"]:
            return f"the slowest {trial.params['backup_workers']} of the workers are left out of every step"
        return None

    def start(self, job: Job) -> None:
        nodes = len(job.cluster.nodes)
        workers = [self._serve("worker", index, index, job) for index in range(job.workers)]
        servers = [self._serve("ps", index, index % nodes, job) for index in range(job.params["ps"])]
        addresses = {kind: [*map(self._address, each)] for kind, each in (("worker", workers), ("ps", servers))}
        host = job.cluster.nodes[0].address
        addresses["chief"] = [f"{host}:{free_ports([host])[0]}"]
        self.spawn(0, [sys.executable, "-m", f"{PROGRAMS}.coordinator", str(self.assignment(addresses))], "coordinator")

    def _serve(self, kind: str, index: int, node: int, job: Job) -> tuple[str, Process]:
        host = job.cluster.place(node).address
        argv = [sys.executable, "-m", f"{PROGRAMS}.serve", kind, str(index), str(ceil(job.cores)), host]
        return host, self.spawn(node, argv, f"{kind}-{index}")

    def _address(self, server: tuple[str, Process]) -> str:
        """Wait until a server listens; returns its address."""
        host, process = server
        process.wait_ready(lambda each: each.says(LISTENING), crowded(READY_S, self._job.workers))
        return f"{host}:{process.log_text().rpartition(LISTENING)[2].split()[0]}"


ASYNC_DIFFERS = "each worker's gradient is of weights that others may have changed meanwhile"


def refuses_split(trial: Trial) -> str | None:
    """Return why a network cannot be split over the workers, or None."""
    if trial.workers <= sum(trial.params["hidden"]):
        return None
    return f"{trial.workers} workers are more than the network has outputs to divide among them"
