"""What can be done to the nodes of a trial, from the warden, which none of it hits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import psutil


class Reach:
    """A hand on the nodes of a cluster, by their numbers. What a kind of cluster cannot do is refused beforehand."""

    def pids(self, node: int) -> list[int]:
        """All processes of a node."""
        raise NotImplementedError

    def trainers(self, node: int) -> list[int]:
        """Those of them that make up one worker of the engine, which it may be able to start anew."""
        raise NotImplementedError

    def kill(self, node: int) -> None:
        """End all of a node at once."""
        raise NotImplementedError

    def pause(self, node: int) -> None:
        """Let a node stand still."""
        raise NotImplementedError

    def resume(self, node: int) -> None:
        """Let it go on."""
        raise NotImplementedError

    def slow(self, node: int, share: float) -> None:
        """Leave a node a share of its speed."""
        raise NotImplementedError

    def restore_speed(self, node: int) -> None:
        """Give it back the rest."""
        raise NotImplementedError

    def cut(self, node: int) -> None:
        """Let nothing through to a node or from it."""
        raise NotImplementedError

    def heal(self, node: int) -> None:
        """Let all through again."""
        raise NotImplementedError

    def limit(self, node: int, mbit: float) -> None:
        """Let only so many megabits a second through."""
        raise NotImplementedError

    def unlimit(self, node: int) -> None:
        """Let as many through as before."""
        raise NotImplementedError

    def fill(self, node: int) -> None:
        """Use up a node's memory."""
        raise NotImplementedError


class OfProcesses(Reach):
    """Nodes that are only processes, the descendants of this one: node 1 is all that has the role worker-1.

    `trainer` is a part of the command line by which the process is known that trains, where a worker has others, too.
    """

    def __init__(self, trainer: str | None) -> None:
        self._trainer = trainer
        self._brakes: dict[int, Brake] = {}
        self._stopped: dict[int, list[int]] = {}

    def pids(self, node: int) -> list[int]:
        below = psutil.Process().children(recursive=True)
        return with_children(each for each in below if role(each) == f"worker-{node}")

    def trainers(self, node: int) -> list[int]:
        every = sorted(alive(self.pids(node)), key=lambda each: each.create_time())
        fit = (each for each in every if trains(each, self._trainer))
        return with_children(each for each in [next(fit, None)] if each)

    def kill(self, node: int) -> None:
        send_all(lambda: self.pids(node), signal.SIGKILL)

    def pause(self, node: int) -> None:
        self._stopped[node] = send_all(lambda: self.pids(node), signal.SIGSTOP)

    def resume(self, node: int) -> None:
        send(self._stopped.pop(node, []), signal.SIGCONT)

    def slow(self, node: int, share: float) -> None:
        self._brakes[node] = Brake(lambda: self.pids(node), share)
        self._brakes[node].start()

    def restore_speed(self, node: int) -> None:
        if brake := self._brakes.pop(node, None):
            brake.release()


def trains(process: psutil.Process, program: str | None) -> bool:
    """Whether a process is a worker of an engine: one that runs a program, or has a worker's role."""
    if program is None:
        return (role(process) or "").startswith("worker-")
    with contextlib.suppress(psutil.Error):
        return program in " ".join(process.cmdline())
    return False


def role(process: psutil.Process) -> str | None:
    """The role that a process was given or has inherited; None if it is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get("TRAINOFF_ROLE")
    return None


def alive(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Those processes that are still there."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(pid)


def with_children(processes: Iterable[psutil.Process]) -> list[int]:
    """The processes and all that they have started, each once, by their numbers."""
    found: dict[int, None] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= dict.fromkeys([process.pid, *(each.pid for each in process.children(recursive=True))])
    return list(found)


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
