"""Faults: when one is due, what it does to which nodes, and what it did to the training."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import psutil

from trainoff.runner.events import TrialState
from trainoff.runner.sampler import role_of
from trainoff.study import Trial
from trainoff.study.keys import LAST, moment


class FaultTargets:
    """The nodes of a trial, as descendants of this process: node 1 is every process with the role worker-1.

    `trainer` is contained in the command line of the process that trains, if a worker has several processes. Nodes
    with their own network and memory (`LabTargets`) can do what is not implemented here; a study is refused elsewhere.
    """

    def __init__(self, trainer: str | None) -> None:
        self._trainer = trainer
        self._throttles: dict[int, Throttle] = {}
        self._stopped: dict[int, list[int]] = {}

    def pids(self, node: int) -> list[int]:
        """Return all processes of a node."""
        below = psutil.Process().children(recursive=True)
        return with_children(each for each in below if role_of(each) == f"worker-{node}")

    def trainers(self, node: int) -> list[int]:
        """Return the processes of one worker of the engine, which the engine may be able to restart."""
        running = []
        for pid in self.pids(node):
            with contextlib.suppress(psutil.Error):  # it has ended
                running.append(psutil.Process(pid))
        running.sort(key=lambda process: process.create_time())
        return with_children([process for process in running if is_trainer(process, self._trainer)][:1])

    def kill(self, node: int) -> None:
        send_all(lambda: self.pids(node), signal.SIGKILL)

    def pause(self, node: int) -> None:
        self._stopped[node] = send_all(lambda: self.pids(node), signal.SIGSTOP)

    def resume(self, node: int) -> None:
        send(self._stopped.pop(node, []), signal.SIGCONT)

    def slow(self, node: int, share: float) -> None:
        """Reduce the speed of a node to a share."""
        self._throttles[node] = Throttle(lambda: self.pids(node), share)
        self._throttles[node].start()

    def restore_speed(self, node: int) -> None:
        if throttle := self._throttles.pop(node, None):
            throttle.release()

    def cut(self, node: int) -> None:
        raise NotImplementedError

    def heal(self, node: int) -> None:
        raise NotImplementedError

    def limit(self, node: int, mbit: float) -> None:
        raise NotImplementedError

    def unlimit(self, node: int) -> None:
        raise NotImplementedError

    def fill(self, node: int) -> None:
        raise NotImplementedError


def is_trainer(process: psutil.Process, program: str | None) -> bool:
    """Return whether a process trains: it runs the program, or without one has a worker's role."""
    if program is None:
        return (role_of(process) or "").startswith("worker-")
    with contextlib.suppress(psutil.Error):
        return program in " ".join(process.cmdline())
    return False


def with_children(processes: Iterable[psutil.Process]) -> list[int]:
    """Return the ids of the processes and of their descendants, each once."""
    found: dict[int, None] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= dict.fromkeys([process.pid, *(each.pid for each in process.children(recursive=True))])
    return list(found)


PERIOD_S = 0.04  # of running and stopping; short compared with a step of training
REFRESH_S = 1.0  # how often new processes are listed


class Throttle:
    """Stops and continues processes in turn until it is released; `pids` lists them."""

    def __init__(self, pids: Callable[[], Iterable[int]], share: float) -> None:
        self._pids, self._share = pids, share
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Let the processes run at full speed."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pids: list[int] = []
        listed = -REFRESH_S
        while not self._end.wait(PERIOD_S * self._share):
            if time.monotonic() - listed > REFRESH_S:
                pids, listed = list(self._pids()), time.monotonic()
            send(pids, signal.SIGSTOP)
            self._end.wait(PERIOD_S * (1 - self._share))
            send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the processes that have not ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def send_all(find: Callable[[], Iterable[int]], number: signal.Signals) -> list[int]:
    """Send SIGKILL or SIGSTOP to all processes that `find` lists, and to those started meanwhile; return them."""
    done: set[int] = set()
    while new := set(find()) - done:
        send(new, number)
        done |= new
    return sorted(done)


FAULT, HEAL = "fault", "heal"  # the commands on the control pipe
HEALS: Mapping[str, Callable[[FaultTargets, int], None]] = {
    "pause": lambda targets, node: targets.resume(node),
    "slow": lambda targets, node: targets.restore_speed(node),
    "cut": lambda targets, node: targets.heal(node),
    "limit": lambda targets, node: targets.unlimit(node),
}


class FaultInjector:
    """Injects one fault, once; `emit` reports events."""

    def __init__(self, fault: Mapping[str, Any], targets: FaultTargets, emit: Callable[..., None]) -> None:
        self._fault, self._targets, self._emit = fault, targets, emit
        self._action, self._node = fault["action"], fault["node"]
        self._injected = False
        self._active = False  # whether a fault that lasts is in effect
        self._lock = threading.Lock()  # the timer and the supervisor may both heal it

    def inject(self) -> None:
        """Inject the fault, report how many processes it hit or why it could not be injected, and time its end."""
        hit, why, when = 0, None, time.monotonic()
        self._injected = True
        try:
            node, targets = self._node, self._targets
            found = targets.trainers(node) if self._action == "kill-process" else targets.pids(node)
            if not found:
                raise LookupError("there is no such process")
            when = time.monotonic()  # before it is injected: it may be detected before that returns
            self._do(found)
            hit = len(found)
        except Exception as error:  # the supervisor must go on
            why = f"{type(error).__name__}: {error}"
        self._emit("fault", t=when, action=self._action, node=self._node, processes=hit, why=why)
        self._active = bool(hit) and self._action in HEALS
        if self._active and (seconds := self._fault["for_s"]):
            healing = threading.Timer(seconds, self.heal)
            healing.daemon = True
            healing.start()

    def _do(self, hit: Sequence[int]) -> None:
        node, targets = self._node, self._targets
        match self._action:
            case "kill-process":
                send(hit, signal.SIGKILL)
            case "kill-node":
                targets.kill(node)
            case "pause":
                targets.pause(node)
            case "slow":
                targets.slow(node, self._fault["share"])
            case "cut":
                targets.cut(node)
            case "limit":
                targets.limit(node, self._fault["bandwidth_mbit"])
            case "fill":
                targets.fill(node)

    @property
    def filled(self) -> bool:
        """Return whether a node's memory has been filled."""
        return self._injected and self._action == "fill"

    def heal(self) -> None:
        """End a fault that lasts; do nothing if it is over or does not last."""
        with self._lock:
            if self._active:
                self._active = False
                HEALS[self._action](self._targets, self._node)
                self._emit("healed", action=self._action, node=self._node)


def fault_of(trial: Trial) -> dict[str, Any] | None:
    """Return the trial's fault with the number of its node; None if it has none."""
    asked = trial.params.get("fault")
    if not asked:
        return None
    return {**asked, "node": trial.workers - 1 if asked["node"] == LAST else asked["node"]}


class FaultSchedule:
    """Decides by a trial's state when its fault is due and when it is over."""

    def __init__(self, fault: Mapping[str, Any] | None) -> None:
        self._at = moment(fault["at"]) if fault else None
        self._done = False

    def commands(self, state: TrialState, now: float) -> Iterator[str]:
        """Yield the commands that are due now, each once. A fault that lasts is over when the training ends."""
        if self._at is None:
            return
        if not self._done and self.wait(state, now) <= 0:
            self._done = True
            yield FAULT
        if self._done and state.phase in ("test", "teardown"):
            self._at = None
            yield HEAL

    def wait(self, state: TrialState, now: float) -> float:
        """Return the seconds until the fault is due: at most 0 if it is, infinite if it depends on progress."""
        at = self._at
        if at is None or self._done or state.phase != "train" or state.train_start is None:
            return math.inf
        if at.second is not None:
            return at.second - (now - state.train_start - state.paused_s)
        if at.step is not None:
            return 0.0 if state.step >= at.step else math.inf
        reached = at.share == 0 or (state.expected and state.samples_seen >= (at.share or 0) * state.expected)
        return 0.0 if reached else math.inf


NOT_INJECTED, UNHARMED, RECOVERED, FAILED = "not done", "unharmed", "recovered", "failed"
NOTHING = dict.fromkeys(
    ("at_s", "step", "processes", "healed_s", "detected_s", "recovered_s", "longest_gap_s", "samples_redone"), None
)


def fault_impact(asked: Mapping[str, Any], state: TrialState, failed: bool) -> dict[str, Any]:
    """Return the record's `fault`: what was asked for and its effect. Seconds but `at_s` are counted from the fault."""
    done = state.fault
    if not done or not done.processes:
        return {**asked, **NOTHING, "why": done.why if done else None, "state": NOT_INJECTED}
    noticed = _detected(state, failed)
    return {
        **asked,
        "at_s": round(state.fault_at_s, 3),
        "step": state.fault_step,
        "processes": done.processes,
        "healed_s": _since(state, state.healed.t if state.healed else None),
        "detected_s": _since(state, noticed),
        "recovered_s": _since(state, None if noticed is None else _recovered(state, noticed)),
        "longest_gap_s": round(_longest_gap(state), 3),
        "samples_redone": sum(loss.samples for loss in state.lost if loss.noticed >= done.t),
        "why": None,
        "state": FAILED if failed else UNHARMED if noticed is None else RECOVERED,
    }


def _detected(state: TrialState, failed: bool) -> float | None:
    """Return when the engine first reported a loss, or gave up; None if it did neither."""
    assert state.fault
    times = [loss.noticed for loss in state.lost]
    if failed and state.error:  # the error is reported after the engine has closed, when the training has ended
        in_training = state.error.phase == "train" and state.train_end
        times.append(in_training or state.error.t)
    return min((t for t in times if t >= state.fault.t), default=None)


def _recovered(state: TrialState, noticed: float) -> float | None:
    """Return when the training first got further than it had been when the loss was noticed."""
    furthest = max((seen for t, seen in state.progress_times if t <= noticed), default=0)
    return next((t for t, seen in state.progress_times if t > noticed and seen > furthest), None)


def _longest_gap(state: TrialState) -> float:
    """Return the longest time after the fault without progress, up to the end of the training.

    An event without new samples is no progress.
    """
    assert state.fault
    start = state.fault.t
    end = [state.train_end] if state.train_end and state.train_end > start else []
    moved = [t for (_, before), (t, seen) in pairwise(state.progress_times) if t > start and seen != before]
    times = [start, *moved, *end]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def _since(state: TrialState, t: float | None) -> float | None:
    assert state.fault
    return None if t is None else round(t - state.fault.t, 3)
