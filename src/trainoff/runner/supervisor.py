"""The supervisor: process 1 of a trial's namespaces. It starts the trial process, samples it and kills what is left.

The life line is a pipe whose writing end only the runner holds. When it closes, the supervisor ends every process; the
runner writes to it when a fault is due. `python -m trainoff.runner.supervisor FOLDER` makes the namespaces first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from trainoff.clusters import namespaces
from trainoff.clusters.lab.cluster import LabPlan
from trainoff.clusters.local import GRACE_S, die_with_parent
from trainoff.engines.shared.watch import ALONE, LAB, OWN_NETWORK, Channel
from trainoff.errors import TrainoffError
from trainoff.runner.faults import FAULT, HEAL, FaultInjector, ProcessTargets
from trainoff.runner.lab.supervisor import Lab, LabTargets
from trainoff.runner.sampler import Sampler, Sockets

LOOK_S = 0.25  # how often the traffic is looked at
KEEP_MEMORY = {
    # For all engines alike: glibc would give the memory of large arrays back after every step, by chance of where they
    # lie, and fetch it again page by page in the next.
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


@dataclass(frozen=True)
class SupervisorConfig:
    """What the runner asks of the supervisor."""

    folder: str  # the trial's scratch folder
    namespaces: bool
    network: bool  # a network of its own
    memory_bytes: int | None  # no role may use more
    fault: dict[str, Any] | None = None  # what is done to a node when the runner says so
    trainer: str | None = None  # by which part of its command line the process is known that trains
    lab: LabPlan | None = None  # the emulated nodes, if it has some

    @staticmethod
    def read(folder: Path) -> SupervisorConfig:
        told = json.loads((folder / "orders.json").read_text())
        return SupervisorConfig(**{**told, "lab": LabPlan.from_json(told["lab"]) if told["lab"] else None})

    def write(self) -> None:
        (Path(self.folder) / "orders.json").write_text(json.dumps(asdict(self)))


class Supervisor:
    """Runs one trial from its start to the last reaped process."""

    def __init__(self, orders: SupervisorConfig, life_line: int) -> None:
        self._orders = orders
        self._life_line = life_line
        self._channel = Channel(Path(orders.folder) / "events")
        self._own_network = orders.namespaces and orders.network
        self._lab = Lab(orders.lab, Path(orders.folder)) if orders.lab else None
        if self._own_network:
            os.environ[OWN_NETWORK] = LAB if self._lab else ALONE
        sockets = Sockets(self._lab.ears(), between=True) if self._lab else None
        self._sampler = Sampler(orders.namespaces, self._own_network, sockets)
        targets = LabTargets(orders.trainer, self._lab) if self._lab else ProcessTargets(orders.trainer)
        self._injector = FaultInjector(orders.fault, targets, self._channel.emit) if orders.fault else None
        self._trial: subprocess.Popen[bytes] | None = None
        self._exit: int | None = None
        self._end_by: float | None = None  # when politeness is over
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked_to_end)

    def run(self) -> int:
        """Start the trial process and watch it until nothing is left; returns its exit code."""
        folder, prefix = Path(self._orders.folder), self._lab.plan.enter_command(0) if self._lab else []
        with (folder / "log.txt").open("ab") as log:
            self._trial = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", "trainoff.runner.trial_main", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**KEEP_MEMORY, **os.environ},
                start_new_session=True,
            )
        if self._end_by is not None:  # asked to end before there was a trial
            self._trial.terminate()
        self._watch()
        self._sample()  # bytes that travelled since the last one
        orphans = self._kill_all()
        self._report(orphans)
        return self._exit or 0

    def _watch(self) -> None:
        next_sample = time.monotonic() + 0.1
        while self._exit is None:
            self._sleep(min(LOOK_S, next_sample - time.monotonic()))
            self._reap()
            self._sampler.look_at_traffic()
            if self._end_by is not None and time.monotonic() > self._end_by:
                return
            if time.monotonic() >= next_sample:
                self._sample()
                next_sample = time.monotonic() + self._sampler.period_s

    def _sleep(self, seconds: float) -> None:
        ready, _, _ = select.select([self._life_line, self._wake], [], [], max(seconds, 0.0))
        if self._life_line in ready:
            self._obey(os.read(self._life_line, 4096).decode())
        if self._wake in ready:
            os.read(self._wake, 4096)

    def _obey(self, said: str) -> None:
        """Do what the runner says through the life line; if nothing is ever said there again, it is gone."""
        if not said:
            self._end_by = 0.0  # no time for politeness
        for word in said.split():
            if self._injector:
                {FAULT: self._injector.inject, HEAL: self._injector.heal}[word]()

    def _sample(self) -> None:
        rows, tick = self._sampler.sample(), time.monotonic()
        for row in rows:
            self._channel.emit("sample", tick=tick, **row)
        if self._lab:
            self._sample_nodes(self._lab, tick)
        limit = self._orders.memory_bytes
        if limit and self._over(limit):
            self._sampler.measure_memory()
            if worst := self._over(limit):
                self._channel.emit("over-memory", role=worst[0], bytes=worst[1], limit=limit)
                self._end_by = 0.0

    def _sample_nodes(self, lab: Lab, tick: float) -> None:
        rows = lab.rows()
        for row in rows:
            self._channel.emit("node", tick=tick, **row)
        filled = self._injector is not None and self._injector.filled  # then it is not the trial's own doing
        if (over := lab.over_memory(rows)) and not filled:
            self._channel.emit("over-memory", **over)
            self._end_by = 0.0

    def _over(self, limit: int) -> tuple[str, int] | None:
        over = [(round(used.pss), role) for role, used in self._sampler.by_role().items() if used.pss > limit]
        return (max(over)[1], max(over)[0]) if over else None

    def _asked_to_end(self, *_: object) -> None:
        if self._end_by is None:
            self._end_by = time.monotonic() + GRACE_S
            if self._trial:
                self._trial.terminate()

    def _reap(self) -> None:
        """Collect every child that has ended, orphans of the trial included, with a last look at each."""
        with contextlib.suppress(ChildProcessError):  # none is left
            while pid := self._ended():
                self._sampler.last_look(pid)
                pid, status = os.waitpid(pid, os.WNOHANG)
                if self._trial and pid == self._trial.pid:
                    self._exit = self._trial.returncode = os.waitstatus_to_exitcode(status)
                if pid == 0:
                    return

    @staticmethod
    def _ended() -> int:
        """A child that has ended and is not reaped yet; 0 if there is none, -1 where one cannot look first."""
        if not hasattr(os, "waitid"):  # macOS
            return -1
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_pid if ended else 0

    def _kill_all(self) -> int:
        """Kill what is left of the trial and wait until it is gone; returns how many there were."""
        killed: set[int] = set()
        while left := psutil.Process().children(recursive=True):
            for process in left:
                with contextlib.suppress(psutil.Error):  # it was quicker
                    if process.status() != psutil.STATUS_ZOMBIE:
                        killed.add(process.pid)
                    process.kill()
            self._reap()
            time.sleep(0.01)
        return len(killed - {self._trial.pid if self._trial else 0})

    def _report(self, orphans: int) -> None:
        """The kernel's own account of the whole tree, exact because everything has been reaped."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        for role, account in self._sampler.by_role().items():
            self._channel.emit("spent", role=role, cpu_s=round(account.user_s + account.system_s, 3))
        self._channel.emit(
            "usage",
            user_s=used.ru_utime,
            system_s=used.ru_stime,
            switches=used.ru_nvcsw + used.ru_nivcsw,
            largest_rss=used.ru_maxrss * (1024 if sys.platform == "linux" else 1),
            orphans=orphans,
            sampler_s=time.process_time(),
            exit=self._exit,
        )


LIFE_LINE = 0


def main() -> int:
    """Fork the supervisor into the new namespaces and pass on its end; dies with the runner.

    Without namespaces this process is the supervisor itself, which must live on until it has killed the others.
    """
    orders = SupervisorConfig.read(Path(sys.argv[1]))
    if not orders.namespaces:
        namespaces.adopt_orphans()
        return _supervise(orders)
    die_with_parent()
    assert orders.network or not orders.lab, "a lab is made in a network of its own"
    namespaces.unshare(orders.network, lab=orders.lab is not None)
    supervisor = os.fork()
    if supervisor == 0:
        die_with_parent()
        namespaces.settle(orders.network)
        os._exit(_supervise(orders) & 0xFF)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(supervisor, signal.SIGTERM))
    _, status = os.waitpid(supervisor, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _supervise(orders: SupervisorConfig) -> int:
    """Be the supervisor, unless the runner died before it could be told: then there is nobody to work for."""
    try:
        supervisor = Supervisor(orders, LIFE_LINE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return 1
        raise
    except TrainoffError as error:  # it could not make what the trial needs
        said = {"status": "start-failed", "reason": str(error), "traceback": None, "unfinished": False}
        Channel(Path(orders.folder) / "events").emit("error", phase="cluster_start", **said)
        return 1
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
