"""The line between the driver and the worker that leads a training which goes on far from the driver.

The worker tells of its progress and hands over snapshots; the driver gives the sign to start, and keeps the time.
Both prove with a secret that they belong together.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

import numpy as np

from trainoff.engines.contract import Job, Watch
from trainoff.errors import TrainoffError
from trainoff.models import Weights, flatten, unflatten

if TYPE_CHECKING:
    from trainoff.engines.pace import Pace

BEAT_S = 0.25  # how often progress is told
POLL_S = 0.1
EXPLAIN_S = 30.0  # how long it may take until it is known why a worker is gone


@dataclass(frozen=True)
class Number:
    """Where to call, and the secret to say."""

    host: str
    port: int
    secret: bytes


class Driver:
    """The driver's end. `check` raises if the workers have failed: nobody waits for those who cannot call."""

    def __init__(self, host: str, check: Callable[[], None]) -> None:
        secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0), authkey=secret)
        self.number = Number(host, self._listener.address[1], secret)
        self._check = check
        self._line: Connection | None = None

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the leading worker to call: all workers are then ready to start."""
        deadline = time.monotonic() + timeout_s
        waiting = self._listener._listener._socket  # type: ignore[attr-defined]  # to wait without being stuck
        waiting.settimeout(POLL_S)
        while self._line is None:
            self._check()
            if time.monotonic() > deadline:
                raise TrainoffError(f"the workers were not ready after {timeout_s:g} s")
            try:
                self._line = self._listener.accept()
            except TimeoutError:
                continue

    def follow(self, job: Job, watch: Watch) -> Weights:
        """Give the sign to start, and pass on to the watch what the worker tells, to the end; returns the weights."""
        line = self._line
        assert line
        line.send("start")
        weights = job.weights
        while message := self._hear(line):
            step, loss, snapshot = message
            watch.progress(step, loss)
            if snapshot:
                watch.due()  # from here to the snapshot the clock stands, and so do the workers
                weights = unflatten(job.model, np.frombuffer(self._take(line.recv_bytes), np.float32))
                watch.snapshot(job.order.samples_after(step), weights)
                line.send("go on")
        return weights

    def _hear(self, line: Connection) -> tuple[int, float, bool] | None:
        while not line.poll(POLL_S):
            self._check()
        message: tuple[int, float, bool] | None = self._take(line.recv)
        return message

    def _take(self, receive: Callable[[], Any]) -> Any:
        """What comes next; if the worker hung up, why, as soon as that is known."""
        try:
            return receive()
        except (EOFError, OSError):
            deadline = time.monotonic() + EXPLAIN_S
            while time.monotonic() < deadline:
                self._check()
                time.sleep(POLL_S)
            raise TrainoffError("the leading worker hung up in the middle of training") from None

    def close(self) -> None:
        if self._line:
            self._line.close()
        self._listener.close()


class Worker:
    """The leading worker's end."""

    def __init__(self, number: Number, pace: Pace) -> None:
        self._line = Client((number.host, number.port), authkey=number.secret)
        self._pace = pace
        self._told = 0.0

    def wait_for_start(self) -> None:
        self._line.recv()

    def progress(self, step: int, loss: float, weights: Callable[[], Weights]) -> None:
        """Say that a step is done; hands over the weights if they are wanted now, and waits until they are safe."""
        samples = self._pace.order.samples_after(step)
        wanted, now = self._pace.wanted(step, samples), time.monotonic()
        if not wanted and now - self._told < BEAT_S and loss - loss == 0:  # a loss that is no number is told at once
            return
        self._told = now
        self._line.send((step, loss, wanted))
        if wanted:
            self._line.send_bytes(flatten(weights()).astype(np.float32, copy=False).tobytes())
            self._line.recv()
            self._pace.taken(samples)

    def end(self) -> None:
        self._line.send(None)
        self._line.close()
