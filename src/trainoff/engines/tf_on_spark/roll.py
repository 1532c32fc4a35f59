"""The roll of a TensorFlow cluster on Spark: its driver hears of every process that ends, at once, and why.

Without it nobody would: Spark's tasks are over once they have started TensorFlow, and a parameter server, or a worker
that waits for another one, says nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge

from trainoff.engines.contract import WorkerFailed
from trainoff.engines.shared.control_channel import Number


@dataclass(frozen=True)
class Ended:
    """What a TensorFlow process has left."""

    code: int
    log: str


class Roll:
    """The driver's end."""

    def __init__(self, host: str) -> None:
        secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0))
        self.number = Number(host, self._listener.address[1], secret)
        self._present: dict[str, Connection] = {}
        self._failed: WorkerFailed | None = None
        self._lost: str | None = None
        self._over = False
        threading.Thread(target=self._call, daemon=True).start()

    def _call(self) -> None:
        while not self._over:
            try:
                line = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: Connection) -> None:
        role = ""
        try:
            deliver_challenge(line, self.number.secret)
            answer_challenge(line, self.number.secret)
            role = line.recv()
            self._present[role] = line
            if self._over:
                line.close()  # too late
            ended: Ended = line.recv()
        except (OSError, EOFError, AuthenticationError):
            if role and not self._over:
                self._lost = self._lost or role
            return
        if not self._over:
            said = ended.log if ended.code > 0 else f"TensorFlow's process ended with code {ended.code}"
            self._failed = self._failed or WorkerFailed(role, said, ended.log)

    def check(self) -> None:
        """Raise if a process has failed and said why."""
        if self._failed:
            raise self._failed

    @property
    def lost(self) -> str | None:
        """The role of a process of which nothing is heard any more, though it never said that it ended."""
        return self._lost

    def close(self) -> None:
        """Send all home: their stewards end the processes."""
        self._over = True
        for line in list(self._present.values()):
            with suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)  # to close it would not do while a thread listens to it
        with suppress(OSError):
            waiting = self._listener._listener._socket  # type: ignore[attr-defined]  # to wake up who waits there
            waiting.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def call(number: Number, role: str) -> Connection:
    """Say to the driver that somebody is there; when it hangs up, it is time to go."""
    line: Connection = Client((number.host, number.port), authkey=number.secret)
    line.send(role)
    return line
