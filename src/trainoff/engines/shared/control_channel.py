"""The control channel between the driver and the chief: the worker that reports for a training that runs elsewhere.

The chief (rank 0 of torch, the chief of TensorFlow) reports progress and sends snapshots; the driver starts the
training and keeps the time. Both authenticate with a shared secret.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.engines.contract import Job, Phases, Watch, WorkerFailed
from trainoff.errors import TrainoffError
from trainoff.models import NamedWeights, Weights, flatten, unflatten

if TYPE_CHECKING:
    from trainoff.engines.shared.snapshots import SnapshotSchedule

READY_S = 300.0  # every process imports a framework, and several may share a core
REPORT_S = 0.25  # between two progress reports
POLL_S = 0.05
CALL_S = 5.0  # timeout of a new connection's first message
EXPLAIN_S = 30.0  # how long it may take until the reason for a lost worker is known

Report = Mapping[str, Any]  # the chief's final report


@dataclass(frozen=True)
class Endpoint:
    """The address of a control server, and its secret."""

    host: str
    port: int
    secret: bytes


@dataclass(frozen=True)
class ProgressReport:
    """A number of steps is done. If `weights` is set, the driver is to request the weights now."""

    step: int
    loss: float | None
    samples_seen: int
    weights: bool


@dataclass(frozen=True)
class FailureReport:
    """A worker raised an exception of its own, which explains why it and others are gone."""

    role: str
    traceback: str


@dataclass(frozen=True)
class LostWorkerReport:
    """A worker was lost and the training continues; other workers repeat some samples."""

    role: str
    samples: int


@dataclass(frozen=True)
class EndReport:
    """All steps are done."""

    report: Report


class ConnectionLost(TrainoffError):
    """The chief's connection closed during training, for a reason that is not known."""


class ControlServer:
    """The driver's end of the channel.

    `check` is called while waiting and raises if the workers have failed. After the chief's connection has closed, the
    reason may take `explain_s` seconds to be known.
    """

    def __init__(self, host: str, check: Callable[[], None], explain_s: float = EXPLAIN_S) -> None:
        self._listener = socket.create_server((host, 0))
        self.endpoint = Endpoint(host, self._listener.getsockname()[1], secrets.token_bytes(32))
        self._check, self._explain_s = check, explain_s
        self._connection: Connection | None = None
        self._early: tuple[Connection, Any] | None = None  # the connection of a new chief, and its first message

    def wait_for(self, state: str, timeout_s: float = READY_S) -> None:
        """Wait until the chief reports a state; every chief reports "ready" when all workers can start."""
        deadline = time.monotonic() + timeout_s
        if self._connection is None and self._early:
            (self._connection, message), self._early = self._early, None
            if message == state:
                return
        while True:
            if self._connection is None:
                self._connection = self._accept(POLL_S)
            elif self._connection.poll(POLL_S):
                message = self._receive(self._connection.recv)
                if isinstance(message, FailureReport):
                    raise WorkerFailed(message.role, message.traceback, message.traceback)
                if message == state:
                    return
                continue
            self._check()
            if time.monotonic() > deadline:
                raise TrainoffError(f"the workers were not {state} after {timeout_s:g} s")

    def check_reports(self) -> None:
        """Raise the failure that a worker (the chief, too) reports on a new connection, if there is one."""
        if self._connection is None or self._early or not (caller := self._accept(0.001)):
            return
        message = None
        with suppress(EOFError, OSError):
            message = caller.recv() if caller.poll(CALL_S) else None
        if message is not None and not isinstance(message, FailureReport):
            self._early = caller, message  # the old chief must be gone, which has not been noticed yet
            return
        caller.close()
        if message:
            raise WorkerFailed(message.role, message.traceback, message.traceback)

    def _accept(self, timeout_s: float) -> Connection | None:
        """Accept a connection that knows the secret; None if there is none in that time, or it stays silent."""
        self._listener.settimeout(timeout_s)
        try:
            caller, _ = self._listener.accept()
        except OSError:
            return None
        caller.setblocking(True)
        _set_receive_timeout(caller, CALL_S)
        connection = Connection(caller.detach())
        try:
            deliver_challenge(connection, self.endpoint.secret)
            answer_challenge(connection, self.endpoint.secret)
        except (EOFError, OSError, AuthenticationError):
            connection.close()
            return None
        with socket.socket(fileno=os.dup(connection.fileno())) as caller:
            _set_receive_timeout(caller, 0)
        return connection

    def follow(
        self, job: Job, watch: Watch, on_step: Callable[[int], None] = lambda step: None
    ) -> tuple[NamedWeights, Report]:
        """Start the training and pass the chief's reports on to the watch, until it ends.

        Returns the weights and the chief's final report, whose breakdowns the watch has. `on_step` is called with every
        step that is reported.
        """
        connection = self._connection
        assert connection
        connection.send("start")
        weights = job.weights
        while not isinstance(message := self._await(connection, connection.recv), EndReport):
            if isinstance(message, LostWorkerReport):
                watch.lost(message.role, message.samples)
                continue
            watch.progress(message.step, message.loss, message.samples_seen)
            on_step(message.step)
            if message.weights:
                watch.due()  # the clock stops from here to the snapshot, and the workers wait
                connection.send("send weights")
                vector = np.frombuffer(self._await(connection, connection.recv_bytes), np.float32)
                weights = unflatten(job.model, vector)
                watch.snapshot(message.samples_seen, weights)
                connection.send("continue")
        for name, figures in message.report.get("breakdowns", {}).items():
            watch.breakdown(name, figures)
        return weights, message.report

    def request(self, payload: Any) -> Any:
        """Return the chief's reply to a request after the end of the training."""
        assert self._connection
        self._connection.send(payload)
        return self._await(self._connection, self._connection.recv)

    def _await(self, connection: Connection, receive: Callable[[], Any]) -> Any:
        """Return the next message, calling `check` until it comes."""
        with suppress(OSError):  # the connection closed: receiving says so
            while not connection.poll(POLL_S):
                self._check()
        return self._receive(receive)

    def _receive(self, receive: Callable[[], Any]) -> Any:
        """Return the next message; if the chief's connection closed, raise the reason as soon as it is known."""
        try:
            return receive()
        except (EOFError, OSError):
            deadline = time.monotonic() + self._explain_s
            while time.monotonic() < deadline:
                self._check()
                time.sleep(POLL_S)
            raise ConnectionLost("the chief worker closed its connection during training") from None

    def disconnect(self) -> None:
        """Close the chief's connection; `wait_for` then waits for a new one."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        self.disconnect()
        self._listener.close()


def wait_until_ready(watch: Phases, wait_for: Callable[[str], None]) -> None:
    """Wait for the states that every chief reports before training; the time until each is a phase."""
    for phase, state in (("cluster_start", "connected"), ("ship", "shipped"), ("compile", "ready")):
        with watch.phase(phase):
            wait_for(state)


def _set_receive_timeout(caller: socket.socket, seconds: float) -> None:
    """Limit how long to wait for a message; 0 is no limit."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


class ControlClient:
    """The chief's end of the channel."""

    def __init__(self, endpoint: Endpoint, snapshot_schedule: SnapshotSchedule) -> None:
        self._connection = Client((endpoint.host, endpoint.port), authkey=endpoint.secret)
        self.snapshot_schedule = snapshot_schedule
        self._last_report = 0.0

    def report_state(self, state: str) -> None:
        """Report how far the preparations have come."""
        self._connection.send(state)

    def wait_for_start(self) -> None:
        self.report_state("ready")
        self._connection.recv()

    def progress(
        self, step: int, loss: float | None, weights: Callable[[], Weights], samples_seen: int | None = None
    ) -> None:
        """Report that a step is done. If a snapshot is due, send the weights and wait until they are written."""
        schedule = self.snapshot_schedule
        samples = schedule.order.samples_after(step) if samples_seen is None else samples_seen
        wanted, now = schedule.wanted(step, samples), time.monotonic()
        diverged = loss is not None and loss - loss != 0  # NaN or infinite: reported at once
        if not wanted and now - self._last_report < REPORT_S and not diverged:
            return
        self._last_report = now
        self._connection.send(ProgressReport(step, loss, samples, wanted))
        self.after_report(step, loss, samples)
        if wanted:
            self._connection.recv()  # the clock has stopped
            self._connection.send_bytes(flatten(weights()).astype(np.float32, copy=False).tobytes())
            self._connection.recv()
            schedule.taken(samples)

    def lost(self, role: str, samples: int) -> None:
        """Report at once that a worker was lost, and how many samples are repeated."""
        self._connection.send(LostWorkerReport(role, samples))

    def after_report(self, step: int, loss: float | None, samples_seen: int) -> None:
        """Do more with a progress report that was sent; for subclasses."""

    def report_now(self) -> None:
        """Let the next progress be reported at once."""
        self._last_report = 0.0

    def end(self, report: Report | None = None) -> None:
        self._connection.send(EndReport(report or {}))

    def serve_requests(self, handle: Callable[[Any], Any]) -> None:
        """Reply to the driver's requests until it disconnects."""
        while True:
            try:
                payload = self._connection.recv()
            except (EOFError, OSError):
                return
            self._connection.send(handle(payload))

    def close(self) -> None:
        self._connection.close()


def report_failure(endpoint: Endpoint, role: str, traceback: str) -> None:
    """Report an exception of this worker to the driver."""
    address = (endpoint.host, endpoint.port)
    with suppress(OSError, EOFError), Client(address, authkey=endpoint.secret) as connection:
        connection.send(FailureReport(role, traceback))
