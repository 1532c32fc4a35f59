"""The warden's hand: it does a fault to a node when it is told to, heals it in time, and says both."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainoff.conduct.brake import send
from trainoff.conduct.reach import Reach

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
        hit, why = 0, None
        self._struck = True
        try:
            hit = self._do()
        except Exception as error:  # the warden must not fall with it
            why = f"{type(error).__name__}: {error}"
        self._say("fault", action=self._action, node=self._node, processes=hit, why=why)
        self._lasts = bool(hit) and self._action in HEALS
        if self._lasts and (seconds := self._fault["for_s"]):
            healing = threading.Timer(seconds, self.heal)
            healing.daemon = True
            healing.start()

    def _do(self) -> int:
        node, reach = self._node, self._reach
        hit = reach.trainers(node) if self._action == "kill-process" else reach.pids(node)
        if not hit:
            raise LookupError("no such process is there")
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
        return len(hit)

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
