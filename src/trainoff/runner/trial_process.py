"""One trial on stage: its processes, its events, its deadlines, its end."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from trainoff.clusters.lab.register import LabCgroups, too_much_memory
from trainoff.clusters.local import GRACE_S, cpus
from trainoff.clusters.namespaces import PortForward
from trainoff.data import cache
from trainoff.runner.events import (
    HostSampleEvent,
    NodeEvent,
    NotAnEvent,
    PageEvent,
    PhaseEvent,
    SampleEvent,
    TrialState,
    read_event,
)
from trainoff.runner.faults import FaultSchedule, fault_of
from trainoff.runner.supervisor import SupervisorConfig
from trainoff.study.machines import GIB, nodes_of
from trainoff.study.study import Trial

TICK_S = 0.5  # how often deadlines are checked and the view is refreshed when nothing happens
HELD_UP_S = 1.0  # between listening and looking at the clock; longer than that, this process was stopped


@dataclass
class Sandbox:
    """What the runner gives a trial: a folder, CPUs, and the isolation that this machine allows."""

    folder: Path
    cpus: list[int]
    namespaces: bool
    network: bool = True
    trainer: str | None = None  # by which part of its command line the process is known that trains


@dataclass
class ExitInfo:
    """How a trial process ended."""

    state: TrialState
    end: float
    exit_code: int | None
    cut_short: str | None  # the status that the runner gave it: timeout or interrupted
    reason: str | None
    stopped: bool = False  # by the user, who wants no further trials
    oom_kills: int = 0


@dataclass
class TrialProcess:
    """Runs one trial in its own process tree, and is over only when nothing of it is left."""

    trial: Trial
    sandbox: Sandbox
    update: Callable[[TrialState], None]
    give_up: Callable[[TrialState], str | None] | None = None  # why it need not go on; None: let it
    _cut_short: str | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _reason: str | None = field(default=None, init=False)
    _kill_at: float = field(default=math.inf, init=False)
    _listened: float = field(default=math.inf, init=False)  # when, by this machine's clock
    _announced: bool = field(default=False, init=False)  # whether others can find its lab
    _forwards: list[PortForward] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        folder = self.sandbox.folder
        # On a cluster that exists, the memory is that of its executors, which are not here.
        memory = None if self.trial.attached else self.trial.memory_gb
        fault = fault_of(self.trial)
        self._cue = FaultSchedule(fault)
        limit = int(memory * GIB) if memory and not self.trial.emulated else None
        self._lab = LabCgroups(nodes_of(self.trial)) if self.trial.emulated else None
        plan = self._lab.plan if self._lab else None
        trainer = self.sandbox.trainer
        SupervisorConfig(
            str(folder), self.sandbox.namespaces, self.sandbox.network, limit, fault, trainer, plan
        ).write()
        spec = {"trial": self.trial.to_json(), "cpus": self.sandbox.cpus}
        (folder / "trial.json").touch(mode=0o600)  # a cluster's secrets may be in it
        (folder / "trial.json").write_text(json.dumps(spec))
        os.mkfifo(folder / "events")
        # Opened for writing too, so that the pipe never reports its end while the trial's processes come and go.
        self._pipe = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._events = (folder / "events.jsonl").open("ab")
        life_line, self._life_line = os.pipe()
        self._oom_before = oom_kills()
        self.state = TrialState(time.monotonic())
        self._launcher = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainoff.runner.supervisor", str(folder)],
            stdin=life_line,
            stdout=(folder / "log.txt").open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **_absolute()},
            start_new_session=True,
        )
        os.close(life_line)
        self._wakers = [self._pipe]
        with contextlib.suppress(AttributeError, OSError):  # Linux, if it may: wakes up at the end of the process, too
            self._wakers.append(os.pidfd_open(self._launcher.pid))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        if self._lab:
            self._lab.close()
        for handle in (*self._wakers, self._life_line):
            os.close(handle)
        self._events.close()
        for forward in self._forwards:
            forward.close()

    def run(self) -> ExitInfo:
        """Listen until the last process is gone. Ctrl-C ends it politely, a second one at once."""
        while self._launcher.poll() is None:
            try:
                self._listen(min(TICK_S, max(0.0, self._cue.wait(self.state, time.monotonic()))))
                self._give_cues()
                self._check_deadlines()
                self.update(self.state)
            except KeyboardInterrupt:
                self._stopped = True
                self.cut_short("interrupted", "stopped by the user")
        self._listen(0.0)
        if self._rest:  # a line that nobody finished
            self._take(self._rest)
        last_word = self.state.usage.t if self.state.usage else time.monotonic()
        return ExitInfo(
            self.state,
            last_word,
            self._launcher.returncode,
            self._cut_short,
            self._reason,
            self._stopped,
            oom_kills() - self._oom_before,
        )

    def cut_short(self, status: str, reason: str) -> None:
        """Ask the trial to end; if it is asked a second time or does not answer, kill it."""
        if self._cut_short:
            self._kill()
            return
        self._cut_short, self._reason = status, reason
        self._kill_at = time.monotonic() + GRACE_S + 2
        self._launcher.terminate()

    def _give_cues(self) -> None:
        """Tell the supervisor when it is time for a fault, and when it is over."""
        for word in self._cue.words(self.state, time.monotonic()):
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                os.write(self._life_line, f"{word}\n".encode())

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self.trial.limits
        if self.state.usage or self._launcher.poll() is not None:
            return  # it has ended already; this process may just have been held up
        if now - self._listened > HELD_UP_S:
            return  # since it last listened: what the trial has said meanwhile comes first
        if now > self._kill_at:
            self._kill()
        elif self._cut_short:
            return
        elif now - self.state.start > limits.timeout_s:
            self.cut_short("timeout", f"not finished after {limits.timeout_s:g} s")
        elif self.state.phase == "train" and now - self.state.last_progress > limits.stall_s:
            self.cut_short("timeout", f"no progress for {limits.stall_s:g} s after step {self.state.step}")
        elif self.give_up and (reason := self.give_up(self.state)):
            self.cut_short("timeout", reason)

    def _kill(self) -> None:
        """Kill the launcher; the kernel then kills all that lives in the trial's namespace."""
        if self._launcher.poll() is None:
            if not self.sandbox.namespaces:
                _kill_tree(self._launcher.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)
            self._launcher.wait()

    def _listen(self, seconds: float) -> None:
        select.select(self._wakers, [], [], seconds)
        self._listened = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._take(line)
        with contextlib.suppress(OSError):  # a full disk shows at the end, when there is a record to rescue
            self._events.flush()  # whoever looks into the file while the trial runs finds what was said so far

    def _forward_page(self, name: str) -> None:
        """Show a page of the trial on this machine's loopback."""
        with contextlib.suppress(OSError):  # the trial goes on without
            forward = PortForward(self.sandbox.folder / f"page-{name}")
            self._forwards.append(forward)
            self.state.pages[name] = forward.url

    def _take(self, line: bytes) -> None:
        try:
            event = read_event(line)
        except NotAnEvent:  # something else wrote into the pipe
            self.state.could_not_read(line)
            return
        self.state.apply(event)
        match event:
            case PageEvent():
                self._forward_page(event.name)
            case PhaseEvent() if self._lab and not self._announced:
                self._announced = True
                with contextlib.suppress(OSError):  # then only `lab status` does not know of it
                    self._lab.announce(self.sandbox.folder.name, self._launcher.pid, self.sandbox.folder)
        if not isinstance(event, SampleEvent | NodeEvent | HostSampleEvent):
            self._events.write(line + b"\n")


def _absolute() -> dict[str, str]:
    """Paths in the environment that must mean the same in the trial's own folder."""
    search = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join(search), "TRAINOFF_CACHE": str(cache.root().absolute())}


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory: of our own control group, or of the machine."""
    for path in (*_own_memory_files(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _own_memory_files() -> Iterator[Path]:
    """Where the kernel counts for the control group of this process; the group of all has no such file."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, kinds, path = line.split(":", 2)
            if number == "0":
                for name in ("memory.events.local", "memory.events"):  # a lab's nodes may be groups below ours
                    yield Path("/sys/fs/cgroup", path.lstrip("/"), name)
            elif "memory" in kinds.split(","):
                yield Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")


def choose_cpus(trial: Trial) -> tuple[list[int], bool]:
    """The CPUs for a trial, and whether it asks for more than there are."""
    here = cpus()
    if trial.remote:
        return here, False
    if trial.emulated:
        return here, too_much_memory(nodes_of(trial), psutil.virtual_memory().total) is not None
    wanted = math.ceil(trial.workers * trial.cores)
    return here[:wanted], wanted > len(here)
