"""One trial as seen by the runner: start its supervisor, read its events, check its deadlines, end it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from trainoff.clusters.lab.register import LabCgroups, too_much_memory
from trainoff.clusters.local import cpus
from trainoff.clusters.namespaces import PortForward
from trainoff.data import cache
from trainoff.runner.events import NodeEvent, PageEvent, PhaseEvent, SampleEvent, TrialState, read_event
from trainoff.runner.faults import FaultSchedule, fault_of
from trainoff.runner.supervisor import TRIAL_GRACE_S, SupervisorConfig
from trainoff.study.machines import GIB, nodes_of
from trainoff.study.study import Trial

TICK_S = 0.5  # how often deadlines are checked and the observer is updated when there are no events
SUPERVISOR_MARGIN_S = 2.0  # how long beyond TRIAL_GRACE_S it may take to kill what is left and to report
HELD_UP_S = 1.0  # a longer time between reading events and checking deadlines means that this process was stopped


@dataclass
class Sandbox:
    """What the runner gives a trial: a folder, CPUs, and the isolation that this machine allows."""

    folder: Path
    cpus: list[int]
    namespaces: bool
    network: bool = True  # whether it has a network namespace
    trainer: str | None = None  # what the command line of the process that trains contains


@dataclass
class ExitInfo:
    """How a trial process ended."""

    state: TrialState
    end: float
    exit_code: int | None
    cut_short: str | None  # the status by which the runner ended the trial: timeout or interrupted
    reason: str | None
    stopped: bool = False  # by the user, so that no further trial is run
    oom_kills: int = 0


class TrialProcess:
    """One trial in its own process tree. When the `with` block ends, no process of it is left."""

    def __init__(
        self,
        trial: Trial,
        sandbox: Sandbox,
        updates: Sequence[Callable[[TrialState], None]],
        give_up: Callable[[TrialState], str | None] | None = None,
    ) -> None:
        """`updates` are called while the trial runs; `give_up` is too, and may return a reason to end it."""
        self._trial, self._sandbox, self._updates, self._give_up = trial, sandbox, updates, give_up
        self._folder = sandbox.folder
        self._cut_short: str | None = None
        self._reason: str | None = None
        self._stopped = False
        self._kill_at = math.inf
        self._last_read = math.inf  # when events were read last, by this machine's clock
        self._announced = False  # whether other commands can find the lab
        self._forwards: list[PortForward] = []
        self._rest = b""  # the beginning of a line

    def __enter__(self) -> Self:
        folder, trial = self._folder, self._trial
        fault = fault_of(trial)
        self._faults = FaultSchedule(fault)
        self._lab = LabCgroups(nodes_of(trial)) if trial.emulated else None
        # The kernel limits emulated nodes; in a cluster that exists already the limit is that of executors elsewhere.
        memory = None if trial.emulated or trial.attached else trial.memory_gb
        SupervisorConfig(
            str(folder),
            self._sandbox.namespaces,
            self._sandbox.network,
            int(memory * GIB) if memory else None,
            fault,
            self._sandbox.trainer,
            self._lab.plan if self._lab else None,
        ).write()
        (folder / "trial.json").touch(mode=0o600)  # it may hold secrets of a cluster
        (folder / "trial.json").write_text(json.dumps({"trial": trial.to_json(), "cpus": self._sandbox.cpus}))
        os.mkfifo(folder / "events")
        # Opened for writing too, so that the pipe never reports its end while the trial's processes come and go.
        self._pipe = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        self._events = (folder / "events.jsonl").open("ab")
        control, self._control_pipe = os.pipe()
        self._oom_kills_before = oom_kills()
        self.state = TrialState(time.monotonic())
        # Paths must mean the same in the trial's folder.
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        search = os.pathsep.join(str(Path(path).absolute()) for path in given if path)
        self._supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainoff.runner.supervisor", str(folder)],
            stdin=control,
            stdout=(folder / "log.txt").open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": search, "TRAINOFF_CACHE": str(cache.root().absolute())},
            start_new_session=True,
        )
        os.close(control)
        self._descriptors = [self._pipe]
        with contextlib.suppress(AttributeError, OSError):  # on Linux, wake up when the supervisor ends
            self._descriptors.append(os.pidfd_open(self._supervisor.pid))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._kill()
        if self._lab:
            self._lab.close()
        for handle in (*self._descriptors, self._control_pipe):
            os.close(handle)
        self._events.close()
        for forward in self._forwards:
            forward.close()

    def run(self) -> ExitInfo:
        """Read events until the supervisor has ended. Ctrl-C asks the trial to end, a second one kills it."""
        while self._supervisor.poll() is None:
            try:
                self._read_events(min(TICK_S, max(0.0, self._faults.wait(self.state, time.monotonic()))))
                for command in self._faults.commands(self.state, time.monotonic()):
                    with contextlib.suppress(BrokenPipeError):  # the supervisor has ended already
                        os.write(self._control_pipe, f"{command}\n".encode())
                self._check_deadlines()
                for update in self._updates:
                    update(self.state)
            except KeyboardInterrupt:
                self._stopped = True
                self._end("interrupted", "stopped by the user")
        self._read_events(0.0)
        if self._rest:  # a line without an end
            self._take(self._rest)
        return ExitInfo(
            self.state,
            self.state.usage.t if self.state.usage else time.monotonic(),
            self._supervisor.returncode,
            self._cut_short,
            self._reason,
            self._stopped,
            oom_kills() - self._oom_kills_before,
        )

    def _end(self, status: str, reason: str) -> None:
        """Ask the trial to end and kill it after a while; asked a second time, kill it now."""
        if self._cut_short:
            self._kill()
            return
        self._cut_short, self._reason = status, reason
        self._kill_at = time.monotonic() + TRIAL_GRACE_S + SUPERVISOR_MARGIN_S
        self._supervisor.terminate()

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self._trial.limits
        if self.state.usage or self._supervisor.poll() is not None:
            return  # the trial has ended already; this process may have been stopped meanwhile
        if now - self._last_read > HELD_UP_S:
            return  # this process was stopped; what the trial reported meanwhile is read first
        if now > self._kill_at:
            self._kill()
        elif self._cut_short:
            return
        elif now - self.state.start > limits.timeout_s:
            self._end("timeout", f"not finished after {limits.timeout_s:g} s")
        elif self.state.phase == "train" and now - self.state.last_progress > limits.stall_s:
            self._end("timeout", f"no progress for {limits.stall_s:g} s after step {self.state.step}")
        elif self._give_up and (reason := self._give_up(self.state)):
            self._end("timeout", reason)

    def _kill(self) -> None:
        """Kill the supervisor; the kernel then kills everything in the trial's namespace."""
        if self._supervisor.poll() is None:
            if not self._sandbox.namespaces:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for process in psutil.Process(self._supervisor.pid).children(recursive=True):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._supervisor.pid, signal.SIGKILL)
            self._supervisor.wait()

    def _read_events(self, seconds: float) -> None:
        """Wait for events, at most some seconds, and apply them."""
        select.select(self._descriptors, [], [], seconds)
        self._last_read = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._take(line)
        with contextlib.suppress(OSError):  # a full disk is noticed when the record is stored
            self._events.flush()  # the file can be read while the trial runs

    def _take(self, line: bytes) -> None:
        try:
            event = read_event(line)
        except (ValueError, RecursionError):  # not JSON, or no event; a thousand brackets end in a RecursionError
            self.state.add_unreadable(line)
            return
        self.state.apply(event)
        match event:
            case PageEvent():
                with contextlib.suppress(OSError):  # the trial does not need its page on this machine's loopback
                    forward = PortForward(self._folder / f"page-{event.name}")
                    self._forwards.append(forward)
                    self.state.pages[event.name] = forward.url
            case PhaseEvent() if self._lab and not self._announced:
                self._announced = True
                with contextlib.suppress(OSError):  # then `trainoff lab status` does not list it
                    self._lab.announce(self._folder.name, self._supervisor.pid, self._folder)
        if not isinstance(event, SampleEvent | NodeEvent):
            self._events.write(line + b"\n")


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, in this control group or on the machine."""
    for path in (*_memory_event_files(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _memory_event_files() -> Iterator[Path]:
    """Yield the files in which the kernel counts for this process's control group; the root group has none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, kinds, path = line.split(":", 2)
            if number == "0":
                for name in ("memory.events.local", "memory.events"):  # the nodes of a lab may be groups below this one
                    yield Path("/sys/fs/cgroup", path.lstrip("/"), name)
            elif "memory" in kinds.split(","):
                yield Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")


def choose_cpus(trial: Trial) -> tuple[list[int], bool]:
    """Return the CPUs for a trial, and whether it asks for more than there are."""
    here = cpus()
    if trial.remote:
        return here, False
    if trial.emulated:
        return here, too_much_memory(nodes_of(trial), psutil.virtual_memory().total) is not None
    wanted = math.ceil(trial.workers * trial.cores)
    return here[:wanted], wanted > len(here)
