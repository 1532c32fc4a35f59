"""A brake on some processes: it runs them for a share of the time only, as a slower machine would."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

PERIOD_S = 0.04  # of running and standing still; short beside a step of training
REFRESH_S = 1.0  # how often new processes are looked for


class Brake:
    """Stops processes and lets them go on in turn, until it is released. `pids` names them at a moment."""

    def __init__(self, pids: Callable[[], Iterable[int]], share: float) -> None:
        self._pids, self._share = pids, share
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Let all go on at their own speed."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pids: list[int] = []
        looked = -REFRESH_S
        while not self._end.wait(PERIOD_S * self._share):
            if time.monotonic() - looked > REFRESH_S:
                pids, looked = list(self._pids()), time.monotonic()
            send(pids, signal.SIGSTOP)
            self._end.wait(PERIOD_S * (1 - self._share))
            send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def send_all(find: Callable[[], Iterable[int]], number: signal.Signals) -> list[int]:
    """Send a signal that ends or stops to all that `find` finds, and to what they start meanwhile; returns them."""
    done: set[int] = set()
    while new := set(find()) - done:
        send(new, number)
        done |= new
    return sorted(done)
