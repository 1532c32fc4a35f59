"""A brake on the processes of one worker: it runs them for a share of the time only, as a slower machine would."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

import psutil

from trainoff.clusters.process import Process

PERIOD_S = 0.04  # of running and standing still; short beside a step of training
REFRESH_S = 1.0  # how often new processes are looked for


class Brake:
    """Stops processes and lets them go on in turn, as long as the `with` lasts.

    `leaders` names the processes to slow down at a moment; their children are slowed with them.
    """

    def __init__(self, leaders: Callable[[], Iterable[int]], share: float) -> None:
        self._leaders, self._share = leaders, share
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pids: list[int] = []
        looked = -REFRESH_S
        while not self._end.wait(PERIOD_S * self._share):
            if time.monotonic() - looked > REFRESH_S:
                pids, looked = list(families(self._leaders())), time.monotonic()
            _send(pids, signal.SIGSTOP)
            self._end.wait(PERIOD_S * (1 - self._share))
            _send(pids, signal.SIGCONT)


def of_role(processes: Iterable[Process], role: str) -> Iterator[int]:
    """The processes of a role: those started under it, and those that others have started and given it."""
    for process in processes:
        if process.role == role:
            yield process.pid
            continue
        with contextlib.suppress(psutil.Error):
            yield from (
                each.pid for each in psutil.Process(process.pid).children(recursive=True) if _role(each) == role
            )


def _role(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("TRAINOFF_ROLE")
    except (psutil.Error, OSError):
        return None


def families(leaders: Iterable[int]) -> Iterable[int]:
    """The processes and all their children."""
    for pid in leaders:
        with contextlib.suppress(psutil.Error):
            yield from (each.pid for each in psutil.Process(pid).children(recursive=True))
            yield pid


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
