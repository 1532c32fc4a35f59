"""The emulated nodes of a trial, and the supervisor of a lab that was started with `trainoff lab up`.

`python -m trainoff.runner.lab.supervisor ABOUT SPECS` runs until SIGTERM. Of its two processes the outer one owns the
control groups; the inner one, process 1 of the lab's namespace, owns the network. When either ends, every process on
the nodes is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainoff.clusters import namespaces
from trainoff.clusters.lab.cgroups import LEAVE_S
from trainoff.clusters.lab.cluster import LabNetwork, LabPlan, gone, node_traffic
from trainoff.clusters.lab.register import LabCgroups, folder
from trainoff.clusters.local import die_with_parent
from trainoff.errors import TrainoffError
from trainoff.runner.faults import FaultTargets
from trainoff.runner.sampler import open_netlink
from trainoff.study.machines import NodeSpec

UP = "up"
REAP_S = 1.0


def main() -> int:
    """Print `up` when the lab is up, or why it is not; then run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cgroups = LabCgroups([NodeSpec(**spec) for spec in json.loads(sys.argv[2])])
    lab_folder = folder() / cgroups.plan.name  # removed with the lab
    lab_folder.mkdir(mode=0o700, parents=True)
    try:
        return _run(cgroups, sys.argv[1], lab_folder)
    finally:
        cgroups.close()


def _run(cgroups: LabCgroups, about: str, lab_folder: Path) -> int:
    namespaces.unshare(network=True, lab=True)
    readable, writable = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(readable)  # so that writing fails when the outer process has ended
        _run_inner(cgroups, lab_folder, writable)
    os.close(writable)
    try:
        with os.fdopen(readable) as pipe:
            message = pipe.readline().strip()
        if message != UP:
            print(message, flush=True)
            return 1
        for number, spec in enumerate(cgroups.plan.specs):
            cgroups.plan.group(number).set_cores(spec.cores)
        cgroups.announce(about, os.getpid(), lab_folder)
        print(UP, flush=True)
        os.waitpid(inner, 0)
        inner = 0
    finally:
        if inner:
            os.kill(inner, signal.SIGKILL)
            os.waitpid(inner, 0)
    return 0


def _run_inner(cgroups: LabCgroups, lab_folder: Path, pipe: int) -> None:
    """Make the network, report that or the error, and reap orphans until killed."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        namespaces.settle(network=True)
        _lab = Lab(cgroups.plan, lab_folder)  # its descriptors keep the networks
        os.write(pipe, f"{UP}\n".encode())
        os.close(pipe)
    except (TrainoffError, OSError) as error:
        os.write(pipe, f"{error}\n".encode())
        os._exit(1)
    while True:
        with contextlib.suppress(ChildProcessError):
            os.wait()
        time.sleep(REAP_S)  # no process runs on the nodes


class Lab:
    """The network and the control groups of a lab, as its supervisor holds them."""

    def __init__(self, plan: LabPlan, folder: Path) -> None:
        self.folder = folder
        self.network = LabNetwork(plan.specs)
        self.plan = replace(plan, networks=self.network.descriptors)
        self.plan.write(folder)
        self.groups = [plan.group(number) for number in range(len(plan.specs))]
        self._killed = 0

    def netlinks(self) -> list[socket.socket]:
        """Return a netlink socket in each node's network, to read the counters of the connections there."""
        return [self.network.inside(number, open_netlink) for number in range(len(self.groups))]

    def rows(self) -> list[dict[str, Any]]:
        """Return what each node has used so far."""
        traffic, rows = node_traffic(Path("/proc/net/dev")), []
        for number, group in enumerate(self.groups):
            sent, received = traffic.get(number, (0, 0))
            rows.append({"node": number, **asdict(group.usage()), "sent_bytes": sent, "received_bytes": received})
        return rows

    def over_memory(self, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the node on which the kernel has killed a process for lack of memory since the last call, or None."""
        killed = sum(row["oom_kills"] for row in rows)
        if killed <= self._killed:
            return None
        self._killed = killed
        worst = max(rows, key=lambda row: row["oom_kills"])
        limit = self.plan.specs[worst["node"]].memory_bytes
        return {"role": f"node-{worst['node']}", "bytes": worst["peak_memory_bytes"], "limit": limit}


class LabTargets(FaultTargets):
    """Emulated nodes: their control groups, network links and memory."""

    def __init__(self, trainer: str | None, lab: Lab) -> None:
        super().__init__(trainer)
        self._lab = lab
        self._fillers: list[subprocess.Popen[bytes]] = []

    def pids(self, node: int) -> list[int]:
        return self._lab.groups[node].pids()

    def kill(self, node: int) -> None:
        """Cut the link first, so that no connection is closed; no process can be started on the node again."""
        self.cut(node)
        gone(self._lab.folder, node).touch()
        deadline = time.monotonic() + LEAVE_S
        while self.pids(node) and time.monotonic() < deadline:  # a process may just be starting others
            super().kill(node)
            time.sleep(0.01)

    def slow(self, node: int, share: float) -> None:
        self._lab.groups[node].set_cores(self._lab.plan.specs[node].cores * share)

    def restore_speed(self, node: int) -> None:
        if self._lab.groups[node].throttled:  # without a quota it runs at full speed already
            self._lab.groups[node].set_cores(self._lab.plan.specs[node].cores)

    def cut(self, node: int) -> None:
        self._lab.network.cut(node)

    def heal(self, node: int) -> None:
        self._lab.network.heal(node)

    def limit(self, node: int, mbit: float) -> None:
        self._lab.network.shape(node, mbit, self._lab.plan.specs[node].latency_ms)

    def unlimit(self, node: int) -> None:
        spec = self._lab.plan.specs[node]
        self._lab.network.shape(node, spec.bandwidth_mbit, spec.latency_ms)

    def fill(self, node: int) -> None:
        code = "import sys; from trainoff.clusters.lab.cluster import fill_memory; fill_memory(*sys.argv[1:])"
        program = [sys.executable, "-P", "-c", code, str(self._lab.folder), str(node)]
        command = [*self._lab.plan.enter_command(node), *program]
        self._fillers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainoffError as error:
        print(error, flush=True)
        sys.exit(1)
