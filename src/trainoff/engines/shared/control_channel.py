"""The line between the driver and the process that leads a training which goes on far from the driver.

The leader tells of its progress and hands over snapshots; the driver gives the sign to start, and keeps the time.
Both prove with a secret that they belong together.
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

from trainoff.engines.contract import Job, Watch, WorkerFailed
from trainoff.errors import TrainoffError
from trainoff.models import Weights, flatten, unflatten

if TYPE_CHECKING:
    from trainoff.engines.shared.snapshots import SnapshotSchedule

BEAT_S = 0.25  # how often progress is told
POLL_S = 0.05
CALL_S = 5.0  # how long a caller may take to begin to speak
EXPLAIN_S = 30.0  # how long it may take until it is known why a worker is gone

Report = Mapping[str, Any]  # what the leader knows at the end


@dataclass(frozen=True)
class Endpoint:
    """Where to call, and the secret to say."""

    host: str
    port: int
    secret: bytes


@dataclass(frozen=True)
class ProgressReport:
    """So many steps are done; with `weights` to follow, if they are wanted now."""

    step: int
    loss: float | None
    samples_seen: int
    weights: bool


@dataclass(frozen=True)
class FailureReport:
    """A worker made a mistake of its own; others need not look further for why it is gone."""

    role: str
    said: str  # its traceback


@dataclass(frozen=True)
class LossReport:
    """The training goes on without somebody; others see so many samples again."""

    role: str
    samples: int


@dataclass(frozen=True)
class EndReport:
    """All steps are done."""

    report: Report


class ConnectionLost(TrainoffError):
    """The leader is gone in the middle of training, and nobody said why."""


class ControlServer:
    """The driver's end. `check` raises if the workers have failed: nobody waits for those who cannot call.

    If the leader hangs up, that may take `explain_s` seconds to be known.
    """

    def __init__(self, host: str, check: Callable[[], None], explain_s: float = EXPLAIN_S) -> None:
        self._listener = socket.create_server((host, 0))
        self.number = Endpoint(host, self._listener.getsockname()[1], secrets.token_bytes(32))
        self._check, self._explain_s = check, explain_s
        self._line: Connection | None = None
        self._early: tuple[Connection, Any] | None = None  # a new leader's call, and its first word

    def wait_for(self, word: str, timeout_s: float) -> None:
        """Wait until the leader says that it has come so far: "ready", at the latest, when all workers can start."""
        deadline = time.monotonic() + timeout_s
        if self._line is None and self._early:
            (self._line, said), self._early = self._early, None
            if said == word:
                return
        while self._line is None:
            self._check_time(word, deadline, timeout_s)
            self._line = self._accept(POLL_S)
        while True:
            while not self._line.poll(POLL_S):
                self._check_time(word, deadline, timeout_s)
            said = self._take(self._line.recv)
            if isinstance(said, FailureReport):
                raise WorkerFailed(said.role, said.said, said.said)
            if said == word:
                return

    def _check_time(self, word: str, deadline: float, timeout_s: float) -> None:
        self._check()
        if time.monotonic() > deadline:
            raise TrainoffError(f"the workers were not {word} after {timeout_s:g} s")

    def check_reports(self) -> None:
        """Raise what another worker than the leader has to say, if one calls while there is a leader."""
        if self._line is None or self._early or not (caller := self._accept(0.001)):
            return
        said = None
        with suppress(EOFError, OSError):
            said = caller.recv() if caller.poll(CALL_S) else None
        if said is not None and not isinstance(said, FailureReport):
            self._early = caller, said  # the old leader must be gone, though nobody has noticed yet
            return
        caller.close()
        if said:
            raise WorkerFailed(said.role, said.said, said.said)

    def _accept(self, timeout_s: float) -> Connection | None:
        """Whoever calls and knows the secret, None if nobody does in that time. Silent callers are sent away."""
        self._listener.settimeout(timeout_s)
        try:
            caller, _ = self._listener.accept()
        except OSError:
            return None
        caller.setblocking(True)
        _patience(caller, CALL_S)
        line = Connection(caller.detach())
        try:
            deliver_challenge(line, self.number.secret)
            answer_challenge(line, self.number.secret)
        except (EOFError, OSError, AuthenticationError):
            line.close()
            return None
        with socket.socket(fileno=os.dup(line.fileno())) as caller:
            _patience(caller, 0)
        return line

    def follow(
        self, job: Job, watch: Watch, heard: Callable[[int], None] = lambda step: None
    ) -> tuple[Weights, Report]:
        """Give the sign to start, and pass on to the watch what the leader tells, to the end.

        Returns the weights, and what the leader has to report. `heard` is called with every step that is told of.
        """
        line = self._line
        assert line
        line.send("start")
        weights = job.weights
        while not isinstance(message := self._hear(line, line.recv), EndReport):
            if isinstance(message, LossReport):
                watch.lost(message.role, message.samples)
                continue
            watch.progress(message.step, message.loss, message.samples_seen)
            heard(message.step)
            if message.weights:
                watch.due()  # from here to the snapshot the clock stands, and so do the workers
                line.send("hand over")
                weights = unflatten(job.model, np.frombuffer(self._hear(line, line.recv_bytes), np.float32))
                watch.snapshot(message.samples_seen, weights)
                line.send("go on")
        return weights, message.report

    def ask(self, question: Any) -> Any:
        """What the leader answers, after the end."""
        assert self._line
        self._line.send(question)
        return self._hear(self._line, self._line.recv)

    def _hear(self, line: Connection, receive: Callable[[], Any]) -> Any:
        """What comes next, as soon as it comes."""
        try:
            while not line.poll(POLL_S):
                self._check()
        except OSError:
            pass  # it hung up; to receive will say so
        return self._take(receive)

    def _take(self, receive: Callable[[], Any]) -> Any:
        """What comes next; if the leader hung up, why, as soon as that is known."""
        try:
            return receive()
        except (EOFError, OSError):
            deadline = time.monotonic() + self._explain_s
            while time.monotonic() < deadline:
                self._check()
                time.sleep(POLL_S)
            raise ConnectionLost("the leading worker hung up in the middle of training") from None

    def hang_up(self) -> None:
        """Forget the leader; `wait_for` waits for the call of another."""
        if self._line:
            self._line.close()
        self._line = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()


def _patience(caller: socket.socket, seconds: float) -> None:
    """How long to wait for a word on a line; 0 means for ever."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


class ControlClient:
    """The other end, in the process that leads."""

    def __init__(self, number: Endpoint, snapshot_schedule: SnapshotSchedule) -> None:
        self._line = Client((number.host, number.port), authkey=number.secret)
        self.snapshot_schedule = snapshot_schedule
        self._told = 0.0

    def say(self, word: str) -> None:
        """Tell the driver how far the preparations have come."""
        self._line.send(word)

    def wait_for_start(self) -> None:
        self.say("ready")
        self._line.recv()

    def progress(
        self, step: int, loss: float | None, weights: Callable[[], Weights], samples_seen: int | None = None
    ) -> None:
        """Say that a step is done; hands over the weights if they are wanted now, and waits until they are safe."""
        samples = self.snapshot_schedule.order.samples_after(step) if samples_seen is None else samples_seen
        wanted, now = self.snapshot_schedule.wanted(step, samples), time.monotonic()
        odd = loss is not None and loss - loss != 0  # a loss that is no number is told at once
        if not wanted and now - self._told < BEAT_S and not odd:
            return
        self._told = now
        self._line.send(ProgressReport(step, loss, samples, wanted))
        self.told(step, loss, samples)
        if wanted:
            self._line.recv()  # not before the clock stands
            self._line.send_bytes(flatten(weights()).astype(np.float32, copy=False).tobytes())
            self._line.recv()
            self.snapshot_schedule.taken(samples)

    def lost(self, role: str, samples: int) -> None:
        """Say at once that the training goes on without somebody, and how many samples are seen again."""
        self._line.send(LossReport(role, samples))

    def told(self, step: int, loss: float | None, samples_seen: int) -> None:
        """What else to do with progress that has been told."""

    def hurry(self) -> None:
        """Let the next progress be told at once."""
        self._told = 0.0

    def end(self, report: Report | None = None) -> None:
        self._line.send(EndReport(report or {}))

    def answer(self, reply: Callable[[Any], Any]) -> None:
        """Answer what the driver asks, until it hangs up."""
        while True:
            try:
                question = self._line.recv()
            except (EOFError, OSError):
                return
            self._line.send(reply(question))

    def close(self) -> None:
        self._line.close()


def report_failure(number: Endpoint, role: str, said: str) -> None:
    """Call the driver to own up to a mistake, from any worker."""
    with suppress(OSError, EOFError), Client((number.host, number.port), authkey=number.secret) as line:
        line.send(FailureReport(role, said))
