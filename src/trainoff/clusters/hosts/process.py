"""A process on a host: what it says, how it ends and what it is sent go through the guard there."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.clusters.process import GRACE_S, Process

if TYPE_CHECKING:
    from trainoff.clusters.ssh.connection import Link

GONE = 255  # how a process ended whose host is lost: as an ssh does
KILL_S = 10.0  # how long a guard may take to see a process ended that it has killed


class HostProcess(Process):
    """A running process on a host. Its number there is its `pid`; its log is here."""

    def __init__(self, link: Link, number: int, role: str, log: Path) -> None:
        self.role, self.log = role, log
        self._from = log.stat().st_size if log.exists() else 0
        self._link, self._number = link, number
        self._pid = 0
        self._code: int | None = None
        self._over = threading.Event()
        log.touch()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._code

    def started(self, pid: int) -> None:
        """The guard has started it."""
        self._pid = pid

    def hear(self, said: bytes) -> None:
        """It has said something."""
        with self.log.open("ab") as log:
            log.write(said)

    def ended(self, code: int) -> None:
        """The guard has seen its end, or the guard is gone."""
        if not self._over.is_set():
            self._code = code
            self._over.set()

    def wait(self, timeout_s: float) -> int:
        if not self._over.wait(timeout_s):
            raise subprocess.TimeoutExpired([self.role], timeout_s)
        return self._code or 0

    def signal(self, number: signal.Signals) -> None:
        self._link.send("signal", number=self._number, signal=int(number))

    def stop(self, grace_s: float = GRACE_S) -> None:
        if self.exit_code is None and grace_s > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(KILL_S)
        self.ended(GONE)
