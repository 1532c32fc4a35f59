"""A hand on the nodes of a lab that is up: kill, pause, slow or cut one, and make it good again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainoff.clusters.lab.cgroups import Group
from trainoff.clusters.lab.network import BRIDGE, port_of
from trainoff.conduct.brake import send, send_all
from trainoff.engines.watch import Channel
from trainoff.errors import TrainoffError
from trainoff.records import BY_HAND
from trainoff.runner.lab.manage import choose, inner, number_of


@dataclass(frozen=True)
class Victim:
    """A node of a lab, as this machine can reach it."""

    group: Group
    port: str  # the bridge's end of its link
    keeper: int  # a process in the bridge's network
    cores: float
    share: float

    def link(self, *words: str) -> None:
        command = ["nsenter", f"--net=/proc/{self.keeper}/ns/net", "ip", "link", "set", self.port, *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise TrainoffError(f"the node's link could not be changed: {done.stderr.strip()}")

    def pids(self) -> list[int]:
        return [pid for pid in self.group.pids() if pid != os.getpid()]


ACTIONS: Mapping[str, Callable[[Victim], object]] = {
    "kill": lambda node: send_all(node.pids, signal.SIGKILL),
    "pause": lambda node: send_all(node.pids, signal.SIGSTOP),
    "resume": lambda node: send(node.pids(), signal.SIGCONT),
    "slow": lambda node: node.group.set_cores(node.cores * node.share),
    "restore": lambda node: node.group.set_cores(node.cores) if node.group.throttled else None,
    "cut": lambda node: node.link("nomaster"),
    "heal": lambda node: node.link("master", BRIDGE),
}


def do(action: str, node: str, lab: str | None, share: float) -> str:
    """Do it to a node of the lab that is up, or of the one that is named; says what was done.

    The record of a trial that runs on it has a note of it, and counts as disturbed.
    """
    if not 0 < share <= 1:
        raise TrainoffError(f"--share {share:g}: expected a number above 0, at most 1")
    entry = choose(lab)
    number = number_of(entry, node)
    victim = Victim(entry.plan.group(number), port_of(number), inner(entry), entry.plan.specs[number].cores, share)
    ACTIONS[action](victim)
    with contextlib.suppress(OSError):  # a lab to play with keeps no record
        Channel(Path(entry.folder) / "events").say("note", name=f"{BY_HAND}{action} node-{number}", text="done")
    return f"{action}: node-{number} of {entry.about}"
