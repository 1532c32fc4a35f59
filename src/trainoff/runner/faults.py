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
from trainoff.study import Trial
from trainoff.study.keys import LAST, moment


class FaultTargets:
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


class ProcessTargets(FaultTargets):
    """Nodes that are only processes, the descendants of this one: node 1 is all that has the role worker-1.

    `trainer` is a part of the command line by which the process is known that trains, where a worker has others, too.
    """

    def __init__(self, trainer: str | None) -> None:
        self._trainer = trainer
        self._brakes: dict[int, Throttle] = {}
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
        self._brakes[node] = Throttle(lambda: self.pids(node), share)
        self._brakes[node].start()

    def restore_speed(self, node: int) -> None:
        if throttle := self._brakes.pop(node, None):
            throttle.release()


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


class Throttle:
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


FAULT, HEAL = "fault", "heal"  # the words on the life line
Say = Callable[..., None]
HEALS: Mapping[str, Callable[[FaultTargets, int], None]] = {
    "pause": lambda targets, node: targets.resume(node),
    "slow": lambda targets, node: targets.restore_speed(node),
    "cut": lambda targets, node: targets.heal(node),
    "limit": lambda targets, node: targets.unlimit(node),
}


class FaultInjector:
    """Does one fault, once."""

    def __init__(self, fault: Mapping[str, Any], targets: FaultTargets, say: Say) -> None:
        self._fault, self._targets, self._say = fault, targets, say
        self._action, self._node = fault["action"], fault["node"]
        self._struck = False
        self._lasts = False  # whether there is something to heal
        self._one = threading.Lock()  # the timer and the supervisor may both want to heal

    def inject(self) -> None:
        """Do it, say how many processes it hit, and see to its end; what cannot be done is said, too."""
        hit, why, when = 0, None, time.monotonic()
        self._struck = True
        try:
            found = self._found()
            when = time.monotonic()  # it takes a while, and may be noticed before it is done
            self._do(found)
            hit = len(found)
        except Exception as error:  # the supervisor must not fall with it
            why = f"{type(error).__name__}: {error}"
        self._say("fault", t=when, action=self._action, node=self._node, processes=hit, why=why)
        self._lasts = bool(hit) and self._action in HEALS
        if self._lasts and (seconds := self._fault["for_s"]):
            healing = threading.Timer(seconds, self.heal)
            healing.daemon = True
            healing.start()

    def _found(self) -> Sequence[int]:
        """The processes that it will hit."""
        node, targets = self._node, self._targets
        found = targets.trainers(node) if self._action == "kill-process" else targets.pids(node)
        if not found:
            raise LookupError("no such process is there")
        return found

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
        """Whether it has filled a node's memory."""
        return self._struck and self._action == "fill"

    def heal(self) -> None:
        """End a fault that lasts; nothing if it is over, or was none of that kind."""
        with self._one:
            if self._lasts:
                self._lasts = False
                HEALS[self._action](self._targets, self._node)
                self._say("healed", action=self._action, node=self._node)


AFTER = ("test", "teardown")  # in these phases the training is over


def fault_of(trial: Trial) -> dict[str, Any] | None:
    """What is to be done to a node of the trial, by its number; None if nothing is."""
    asked = trial.params.get("fault")
    if not asked:
        return None
    return {**asked, "node": trial.workers - 1 if asked["node"] == LAST else asked["node"]}


class FaultSchedule:
    """Follows a trial's state, and says each word to the supervisor once, as soon as it is time."""

    def __init__(self, fault: Mapping[str, Any] | None) -> None:
        self._at = moment(fault["at"]) if fault else None
        self._done = False

    def commands(self, state: TrialState, now: float) -> Iterator[str]:
        """What to say now. A fault that lasts is over with the training."""
        if self._at is None:
            return
        if not self._done and self.wait(state, now) <= 0:
            self._done = True
            yield FAULT
        if self._done and state.phase in AFTER:
            self._at = None
            yield HEAL

    def wait(self, state: TrialState, now: float) -> float:
        """The seconds until the fault is due: at most 0 if it is, infinite where only progress can tell."""
        at = self._at
        if at is None or self._done or state.phase != "train" or state.train_start is None:
            return math.inf
        if at.second is not None:
            return at.second - (now - state.train_start - state.paused_s)
        if at.step is not None:
            return 0.0 if state.step >= at.step else math.inf
        reached = at.share == 0 or (state.expected and state.samples_seen >= (at.share or 0) * state.expected)
        return 0.0 if reached else math.inf


NOT_DONE, UNHARMED, RECOVERED, FAILED = "not done", "unharmed", "recovered", "failed"
NOTHING = dict.fromkeys(
    ("at_s", "step", "processes", "healed_s", "detected_s", "recovered_s", "longest_gap_s", "samples_redone"), None
)


def fault_impact(asked: Mapping[str, Any], state: TrialState, failed: bool) -> dict[str, Any]:
    """What was asked for and what came of it. All seconds but `at_s` are counted from the fault."""
    done = state.fault
    if not done or not done.processes:
        return {**asked, **NOTHING, "why": done.why if done else None, "state": NOT_DONE}
    noticed = _noticed(state, failed)
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


def _noticed(state: TrialState, failed: bool) -> float | None:
    """When the engine first said that somebody was gone, or gave up; None if it never noticed."""
    assert state.fault
    told = [loss.noticed for loss in state.lost]
    if failed and state.error:  # it is said when all is cleared away; where the training failed, that ended before
        in_training = state.error.phase == "train" and state.train_end
        told.append(in_training or state.error.t)
    return min((t for t in told if t >= state.fault.t), default=None)


def _recovered(state: TrialState, noticed: float) -> float | None:
    """When the training was for the first time further than it had ever been when the loss was noticed."""
    furthest = max((seen for t, seen in state.heartbeats if t <= noticed), default=0)
    return next((t for t, seen in state.heartbeats if t > noticed and seen > furthest), None)


def _longest_gap(state: TrialState) -> float:
    """The longest time after the fault in which no progress was told, to the end of the training.

    Some engines only say that they live; that is none.
    """
    assert state.fault
    start = state.fault.t
    end = [state.train_end] if state.train_end and state.train_end > start else []
    moved = [t for (_, before), (t, seen) in pairwise(state.heartbeats) if t > start and seen != before]
    told = [start, *moved, *end]
    return max((after - before for before, after in pairwise(told)), default=0.0)


def _since(state: TrialState, t: float | None) -> float | None:
    assert state.fault
    return None if t is None else round(t - state.fault.t, 3)
