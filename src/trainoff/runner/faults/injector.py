"""The warden's hand: it does a fault to a node when it is told to, heals it in time, and says both."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainoff.runner.faults.targets import Reach, send

FAULT, HEAL = "fault", "heal"  # the words on the life line
Say = Callable[..., None]
HEALS: Mapping[str, Callable[[Reach, int], None]] = {
    "pause": lambda reach, node: reach.resume(node),
    "slow": lambda reach, node: reach.restore_speed(node),
    "cut": lambda reach, node: reach.heal(node),
    "limit": lambda reach, node: reach.unlimit(node),
}


class Hand:
    """Does one fault, once."""

    def __init__(self, fault: Mapping[str, Any], reach: Reach, say: Say) -> None:
        self._fault, self._reach, self._say = fault, reach, say
        self._action, self._node = fault["action"], fault["node"]
        self._struck = False
        self._lasts = False  # whether there is something to heal
        self._one = threading.Lock()  # the timer and the warden may both want to heal

    def strike(self) -> None:
        """Do it, say how many processes it hit, and see to its end; what cannot be done is said, too."""
        hit, why, when = 0, None, time.monotonic()
        self._struck = True
        try:
            found = self._found()
            when = time.monotonic()  # it takes a while, and may be noticed before it is done
            self._do(found)
            hit = len(found)
        except Exception as error:  # the warden must not fall with it
            why = f"{type(error).__name__}: {error}"
        self._say("fault", t=when, action=self._action, node=self._node, processes=hit, why=why)
        self._lasts = bool(hit) and self._action in HEALS
        if self._lasts and (seconds := self._fault["for_s"]):
            healing = threading.Timer(seconds, self.heal)
            healing.daemon = True
            healing.start()

    def _found(self) -> Sequence[int]:
        """The processes that it will hit."""
        node, reach = self._node, self._reach
        found = reach.trainers(node) if self._action == "kill-process" else reach.pids(node)
        if not found:
            raise LookupError("no such process is there")
        return found

    def _do(self, hit: Sequence[int]) -> None:
        node, reach = self._node, self._reach
        match self._action:
            case "kill-process":
                send(hit, signal.SIGKILL)
            case "kill-node":
                reach.kill(node)
            case "pause":
                reach.pause(node)
            case "slow":
                reach.slow(node, self._fault["share"])
            case "cut":
                reach.cut(node)
            case "limit":
                reach.limit(node, self._fault["bandwidth_mbit"])
            case "fill":
                reach.fill(node)

    @property
    def filled(self) -> bool:
        """Whether it has filled a node's memory."""
        return self._struck and self._action == "fill"

    def heal(self) -> None:
        """End a fault that lasts; nothing if it is over, or was none of that kind."""
        with self._one:
            if self._lasts:
                self._lasts = False
                HEALS[self._action](self._reach, self._node)
                self._say("healed", action=self._action, node=self._node)
