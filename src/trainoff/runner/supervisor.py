"""The supervisor: process 1 of a trial's namespaces. It starts the trial process, samples it and kills what is left.

Its standard input is the control pipe, whose writing end only the runner holds. When the pipe closes, the supervisor
kills every process; the runner writes to it when a fault is due. `python -m trainoff.runner.supervisor FOLDER` makes
the namespaces first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from trainoff.clusters import namespaces
from trainoff.clusters.lab.cluster import LabPlan
from trainoff.clusters.local import die_with_parent
from trainoff.engines.shared.watch import LAB, LOOPBACK_ONLY, TRIAL_NETWORK, Channel
from trainoff.errors import TrainoffError
from trainoff.runner.faults import FAULT, HEAL, FaultInjector, FaultTargets
from trainoff.runner.lab.supervisor import Lab, LabTargets
from trainoff.runner.sampler import Sampler, Sockets

TRIAL_GRACE_S = 5.0  # between SIGTERM to the trial process and SIGKILL to everything that is left
TRAFFIC_S = 0.25  # how often the counters of connections are read
KEEP_MEMORY = {
    # The same for all engines: otherwise glibc may, depending on their addresses, return the memory of large arrays to
    # the kernel after every step and fetch it again page by page in the next.
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
FILE = "supervisor.json"


@dataclass(frozen=True)
class SupervisorConfig:
    """What the runner asks the supervisor to do."""

    folder: str  # the trial's scratch folder
    namespaces: bool
    network: bool  # whether to make a network namespace
    memory_bytes: int | None  # the limit of each role
    fault: dict[str, Any] | None = None  # injected when the runner sends the command
    trainer: str | None = None  # what the command line of the process that trains contains
    lab: LabPlan | None = None  # the emulated nodes

    @staticmethod
    def read(folder: Path) -> SupervisorConfig:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=SupervisorConfig)

    def write(self) -> None:
        (Path(self.folder) / FILE).write_bytes(msgspec.json.encode(self))


class Supervisor:
    """Starts the trial process, samples the trial and ends it; `run` returns when the last process has been reaped."""

    def __init__(self, config: SupervisorConfig, control_pipe: int) -> None:
        self._config = config
        self._control_pipe = control_pipe
        self._channel = Channel(Path(config.folder) / "events")
        self._network = config.namespaces and config.network
        self._lab = Lab(config.lab, Path(config.folder)) if config.lab else None
        if self._network:
            os.environ[TRIAL_NETWORK] = LAB if self._lab else LOOPBACK_ONLY
        sockets = Sockets(self._lab.netlinks(), between_nodes=True) if self._lab else None
        self._sampler = Sampler(config.namespaces, self._network, sockets)
        targets = LabTargets(config.trainer, self._lab) if self._lab else FaultTargets(config.trainer)
        self._injector = FaultInjector(config.fault, targets, self._channel.emit) if config.fault else None
        self._trial: subprocess.Popen[bytes] | None = None
        self._exit: int | None = None
        self._deadline: float | None = None  # when to kill everything
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)

    def run(self) -> int:
        """Start the trial process and watch it until no process is left; return its exit code."""
        folder, prefix = Path(self._config.folder), self._lab.plan.enter_command(0) if self._lab else []
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
        if self._deadline is not None:  # asked to end before the trial process was started
            self._trial.terminate()
        self._watch()
        self._sample()  # what was used since the last sample
        orphans = self._kill_all()
        self._report(orphans)
        return self._exit or 0

    def _watch(self) -> None:
        next_sample = time.monotonic() + 0.1
        while self._exit is None:
            self._sleep(min(TRAFFIC_S, next_sample - time.monotonic()))
            self._reap()
            self._sampler.sample_traffic()
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            if time.monotonic() >= next_sample:
                self._sample()
                next_sample = time.monotonic() + self._sampler.period_s

    def _sleep(self, seconds: float) -> None:
        ready, _, _ = select.select([self._control_pipe, self._wake], [], [], max(seconds, 0.0))
        if self._control_pipe in ready:
            self._execute(os.read(self._control_pipe, 4096).decode())
        if self._wake in ready:
            os.read(self._wake, 4096)

    def _execute(self, commands: str) -> None:
        """Execute commands of the control pipe; if it has been closed, the runner is gone, and everything is killed."""
        if not commands:
            self._deadline = 0.0
        for command in commands.split():
            if self._injector:
                {FAULT: self._injector.inject, HEAL: self._injector.heal}[command]()

    def _sample(self) -> None:
        rows, tick = self._sampler.sample(), time.monotonic()
        for row in rows:
            self._channel.emit("sample", tick=tick, **row)
        if self._lab:
            self._sample_nodes(self._lab, tick)
        limit = self._config.memory_bytes
        if limit and (over := self._sampler.over_memory(limit)):
            self._channel.emit("over-memory", role=over[0], bytes=over[1], limit=limit)
            self._deadline = 0.0

    def _sample_nodes(self, lab: Lab, tick: float) -> None:
        rows = lab.rows()
        for row in rows:
            self._channel.emit("node", tick=tick, **row)
        filled = self._injector is not None and self._injector.filled  # then it is not the trial that used the memory
        if (over := lab.over_memory(rows)) and not filled:
            self._channel.emit("over-memory", **over)
            self._deadline = 0.0

    def _terminate(self, *_: object) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + TRIAL_GRACE_S
            if self._trial and self._exit is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._trial.pid, signal.SIGTERM)  # `terminate` might reap it, which `_reap` must do

    def _reap(self) -> None:
        """Reap every child that has ended, adopted orphans included, after a final sample of each."""
        with contextlib.suppress(ChildProcessError):  # none is left
            while pid := self._ended_child():
                self._sampler.final_sample(pid)
                pid, status = os.waitpid(pid, os.WNOHANG)
                if self._trial and pid == self._trial.pid:
                    self._exit = self._trial.returncode = os.waitstatus_to_exitcode(status)
                if pid == 0:
                    return

    @staticmethod
    def _ended_child() -> int:
        """Return a child that has ended and is not reaped yet: 0 if there is none, -1 where that cannot be asked."""
        if not hasattr(os, "waitid"):  # macOS
            return -1
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_pid if ended else 0

    def _kill_all(self) -> int:
        """Kill what is left of the trial and wait until it is gone; return how many processes there were."""
        killed: set[int] = set()
        while left := psutil.Process().children(recursive=True):
            for process in left:
                with contextlib.suppress(psutil.Error):  # it has ended
                    if process.status() != psutil.STATUS_ZOMBIE:
                        killed.add(process.pid)
                    process.kill()
            self._reap()
            time.sleep(0.01)
        return len(killed - {self._trial.pid if self._trial else 0})

    def _report(self, orphans: int) -> None:
        """Report what the kernel counted for the whole tree: exact, because everything has been reaped."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        for role, usage in self._sampler.by_role().items():
            self._channel.emit("spent", role=role, cpu_s=round(usage.user_s + usage.system_s, 3))
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


def main() -> int:
    """Fork the supervisor into new namespaces, pass on its exit code, and die with the runner.

    Without namespaces this process is the supervisor itself, which outlives the runner until it has killed the others.
    """
    config = SupervisorConfig.read(Path(sys.argv[1]))
    if not config.namespaces:
        namespaces.adopt_orphans()
        return _supervise(config)
    die_with_parent()
    assert config.network or not config.lab, "a lab needs a network namespace"
    namespaces.unshare(config.network, lab=config.lab is not None)
    supervisor = os.fork()
    if supervisor == 0:
        die_with_parent()
        namespaces.settle(config.network)
        os._exit(_supervise(config) & 0xFF)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(supervisor, signal.SIGTERM))
    _, status = os.waitpid(supervisor, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _supervise(config: SupervisorConfig) -> int:
    """Run the supervisor in this process."""
    try:
        supervisor = Supervisor(config, sys.stdin.fileno())
    except OSError as error:
        if error.errno == errno.ENXIO:  # the runner is gone: no process reads the events
            return 1
        raise
    except TrainoffError as error:  # the lab could not be made
        fields = {"status": "start-failed", "reason": str(error), "traceback": None, "unfinished": False}
        Channel(Path(config.folder) / "events").emit("error", phase="cluster_start", **fields)
        return 1
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
