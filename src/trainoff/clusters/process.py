"""One process of a cluster: its role, its log, whether it is ready, and how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from trainoff.errors import TrainoffError

Readiness = Callable[["Process"], bool]

THREADS = (  # the variables by which libraries are told how many to use
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
LOG_TAIL = 50  # lines of a failing process that reach the record
GRACE_S = 5.0  # between the polite signal and the other one
KILLED_S = 10.0  # how long a process that was killed may take to be gone, where the machine is busy


class Process:
    """A running process of a cluster. It leads a group of its own, so that its children end with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], role: str, log: Path) -> None:
        self.role = role
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0  # before that, another process of this role speaks
        with log.open("ab") as sink:
            self._popen = subprocess.Popen(
                list(argv),
                env={**os.environ, **env, "TRAINOFF_ROLE": role},
                stdin=subprocess.PIPE,  # nothing comes through it; it closes when this process ends, however it does
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._popen.poll()

    @property
    def killed_by(self) -> str:
        """The name of the signal that ended it; empty if none did."""
        code = self.exit_code or 0
        return signal.Signals(-code).name if code < 0 else ""

    def tail(self, lines: int = LOG_TAIL) -> str:
        """The end of the process's log."""
        return "\n".join(self.said().splitlines()[-lines:])

    def said(self) -> str:
        """Its whole log."""
        return self.log.read_bytes()[self._from :].decode(errors="replace")

    def says(self, pattern: str) -> bool:
        """Whether the log holds a line that matches: the simplest sign of readiness."""
        return re.search(pattern, self.said(), re.MULTILINE) is not None

    def wait_ready(self, ready: Readiness, timeout_s: float) -> None:
        """Wait until `ready(self)`; fails at once if the process ends first, and says why with its log."""
        deadline = time.monotonic() + timeout_s
        while not ready(self):
            if self.exit_code is not None:
                raise TrainoffError(f"{self.role} ended with code {self.exit_code} before it was ready:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TrainoffError(f"{self.role} was not ready after {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._popen.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End it: politely first, then for certain, and return when all that it has started is gone, too."""
        # Once it has ended and was reaped, another process may have its number.
        started = self._descendants() if self.exit_code is None else []
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        self._popen.wait()
        for process in started:  # some are in groups of their own, as torchrun's workers
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, KILLED_S)
        if self._popen.stdin:
            self._popen.stdin.close()
