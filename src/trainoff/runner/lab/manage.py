"""`trainoff lab`: start, stop and show labs, run commands on their nodes, and kill, pause, slow or cut nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from trainoff.clusters import namespaces
from trainoff.clusters.lab import register
from trainoff.clusters.lab.cgroups import Cgroup, find_groups
from trainoff.clusters.lab.cluster import BRIDGE, node_traffic, port_of
from trainoff.clusters.lab.register import MANUAL, LabEntry, labs, sweep
from trainoff.clusters.local import cpus
from trainoff.engines.shared.watch import Channel
from trainoff.errors import TrainoffError
from trainoff.records import BY_HAND
from trainoff.runner.faults import send, send_all
from trainoff.runner.lab.supervisor import UP
from trainoff.study.keys import CLUSTER, checked
from trainoff.study.machines import LINK, NodeSpec, settle_nodes, shipped
from trainoff.study.suggestions import suggest

INTERVAL_S = 0.5  # between the two readings by which the use of CPUs is measured
END_S = 10.0


def specs_of(asked: Mapping[str, Any]) -> list[NodeSpec]:
    """Return the nodes that the options ask for, checked like the keys of a study."""
    values: dict[str, Any] = {}
    for name in ("nodes", "cores", "memory_gb", *LINK, "machine", "scale", "memory_scale"):
        values[name] = CLUSTER[name].default
        if asked.get(name) is not None:
            values[name] = checked([CLUSTER[name]], asked[name], _option_error(name))
    machine, machines = values["machine"], shipped()
    if machine is not None and machine not in machines:
        raise TrainoffError(f"--machine {machine}: {suggest(machine, machines, 'the machines are')}")
    if asked.get("cores") is None and machine is None:
        values["cores"] = len(cpus()) / values["nodes"]
    given = {name for name, value in asked.items() if value is not None}
    values |= {"kind": "lab", "workers": 1}
    settle_nodes(values, machines, dict.fromkeys(given))
    sizes: dict[str, Any] = {name: values.get(name) for name in ("cores", "memory_gb", *LINK)}
    return [NodeSpec(**sizes)] * values["workers"]


def _option_error(name: str) -> Callable[[str], TrainoffError]:
    return lambda message: TrainoffError(f"--{name.replace('_', '-')}: {message}")


def up(specs: Sequence[NodeSpec]) -> LabEntry:
    """Start a lab, which stays until `down`."""
    if any(entry.about == MANUAL for entry in labs()):
        raise TrainoffError("a lab is up already; `trainoff lab status` shows it, `trainoff lab down` ends it")
    if why_not := namespaces.why_not():
        raise TrainoffError(f"the lab needs namespaces of its own: {why_not}")
    if reason := register.missing() or register.refuses(specs, len(cpus())):
        raise TrainoffError(reason)
    command = [sys.executable, "-P", "-m", "trainoff.runner.lab.supervisor", MANUAL]
    process = subprocess.Popen(
        [*command, json.dumps([asdict(spec) for spec in specs])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdout
    message = process.stdout.readline().strip()
    found = [entry for entry in labs() if entry.supervisor == process.pid]
    if message != UP or not found:
        raise TrainoffError(message or "the lab did not come up")
    return found[0]


def status() -> list[dict[str, Any]]:
    """Return the state of every node of every lab that is up, including the labs of running trials."""
    entries = list(labs())
    before = [_cpu_seconds(entry) for entry in entries]
    start = time.monotonic()
    if entries:
        time.sleep(INTERVAL_S)
    passed = time.monotonic() - start
    return [row for entry, first in zip(entries, before, strict=True) for row in _rows(entry, first, passed)]


def _cpu_seconds(entry: LabEntry) -> list[float]:
    with contextlib.suppress(OSError):
        return [entry.plan.group(number).usage().cpu_s for number in range(len(entry.plan.specs))]
    return []


def _rows(entry: LabEntry, before: Sequence[float], passed: float) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError, KeyError, TrainoffError):  # the lab has ended meanwhile
        traffic, rows = node_traffic(Path(f"/proc/{init_pid(entry)}/net/dev")), []
        for number, first in enumerate(before):
            group, node, spec = entry.plan.group(number), entry.plan.nodes[number], entry.plan.specs[number]
            used = group.usage()
            row = {
                "lab": entry.name,
                "about": entry.about,
                "node": node.name,
                "address": node.address,
                "cores": spec.cores,
                "busy_cores": round((used.cpu_s - first) / passed, 3),
                "memory_bytes": used.memory_bytes,
                "memory_limit_bytes": spec.memory_bytes,
                "processes": len(group.pids()),
                "throttled_s": round(used.throttled_s, 3),
                "sent_bytes": traffic[number][0],
                "received_bytes": traffic[number][1],
            }
            rows.append(row)
        return rows
    return []


def enter_command(node: str, command: Sequence[str], lab: str | None) -> list[str]:
    """Return the command that runs another one on a node."""
    entry = find_lab(lab)
    supervisor = init_pid(entry)
    in_namespaces = ["nsenter", "--target", str(supervisor), "--pid", "--mount", f"--wd={Path.cwd()}", "--"]
    return [*entry.plan.enter_command(number_of(entry, node), supervisor), *in_namespaces, *command]


def number_of(entry: LabEntry, node: str) -> int:
    """Return the number of a node, given its name or number."""
    names = [each.name for each in entry.plan.nodes]
    name = f"node-{node}" if node.isdigit() else node
    if name not in names:
        raise TrainoffError(f"the lab has no {name}; it has {names[0]} to {names[-1]}")
    return names.index(name)


def find_lab(lab: str | None) -> LabEntry:
    """Return the lab of that name, or the one that is up; one started by `trainoff lab up` comes before a trial's."""
    found = [entry for entry in labs() if lab in (None, entry.name)]
    if not found:
        raise TrainoffError(f"no lab {lab} is up" if lab else "no lab is up; `trainoff lab up --nodes 3` starts one")
    manual = [entry for entry in found if entry.about == MANUAL]
    if len(found) > 1 and not manual:
        names = ", ".join(entry.name for entry in found)
        raise TrainoffError(f"several labs are up; choose one with --lab: {names}")
    return (manual or found)[0]


def init_pid(entry: LabEntry) -> int:
    """Return the id of a lab's process 1 outside its namespace."""
    try:
        return int(psutil.Process(entry.supervisor).children()[0].pid)
    except (psutil.Error, IndexError):
        raise TrainoffError(f"lab {entry.name} has just gone down") from None


def down() -> tuple[list[str], list[str]]:
    """End the lab started by `up` and remove what dead labs left; return what has been removed and what still runs."""
    gone = []
    for entry in [entry for entry in labs() if entry.about == MANUAL]:
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(entry.supervisor)
            supervisor.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                supervisor.wait(END_S)
            if supervisor.is_running():
                supervisor.kill()
        gone.append(entry.name)
    gone += sweep(find_groups())
    return gone, [entry.about for entry in labs()]


@dataclass(frozen=True)
class Target:
    """A node of a lab that an action is applied to."""

    group: Cgroup
    port: str  # the bridge's end of its link
    supervisor: int  # a process in the bridge's network
    cores: float
    share: float

    def link(self, *args: str) -> None:
        command = ["nsenter", f"--net=/proc/{self.supervisor}/ns/net", "ip", "link", "set", self.port, *args]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise TrainoffError(f"the node's link could not be changed: {done.stderr.strip()}")

    def pids(self) -> list[int]:
        return [pid for pid in self.group.pids() if pid != os.getpid()]


ACTIONS: Mapping[str, Callable[[Target], object]] = {
    "kill": lambda node: send_all(node.pids, signal.SIGKILL),
    "pause": lambda node: send_all(node.pids, signal.SIGSTOP),
    "resume": lambda node: send(node.pids(), signal.SIGCONT),
    "slow": lambda node: node.group.set_cores(node.cores * node.share),
    "restore": lambda node: node.group.set_cores(node.cores) if node.group.throttled else None,
    "cut": lambda node: node.link("nomaster"),
    "heal": lambda node: node.link("master", BRIDGE),
}


def apply_action(action: str, node: str, lab: str | None, share: float) -> str:
    """Apply an action to a node and return a sentence about it.

    A trial that runs on the lab gets a note in its record, and counts as disturbed.
    """
    if not 0 < share <= 1:
        raise TrainoffError(f"--share {share:g}: expected a number above 0, at most 1")
    entry = find_lab(lab)
    number = number_of(entry, node)
    target = Target(entry.plan.group(number), port_of(number), init_pid(entry), entry.plan.specs[number].cores, share)
    ACTIONS[action](target)
    with contextlib.suppress(OSError):  # there is a record only if a trial runs
        Channel(Path(entry.folder) / "events").emit("note", name=f"{BY_HAND}{action} node-{number}", text="done")
    return f"{action}: node-{number} of {entry.about}"
