"""The remote agent: start a trial's processes on a host, sample them, and end with the trial's supervisor.

It is started over ssh (clusters/ssh) and reads messages from its standard input. When that closes, or stays silent for
a minute, it ends every process and removes the trial's folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from trainoff.clusters.local import cpus
from trainoff.clusters.namespaces import adopt_orphans
from trainoff.clusters.ssh.connection import (
    SILENCE_S,
    Head,
    MessageStream,
    TrialFolder,
    files_below,
    sentence,
    state,
    take_file,
)
from trainoff.runner.machine import cpu_model
from trainoff.runner.sampler import Sampler

LEAVE_S = 5.0  # how long the end may take, and then what is told of it
LAST_WORDS_S = 2.0  # how long what a process said last may take to be read after its end
POLITE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
FIGURES = ("user_s", "system_s", "switches", "read_bytes", "write_bytes", "rss", "processes", "threads")


@dataclass(frozen=True)
class AgentConfig:
    """What the guard is told at its start."""

    folder: str  # the trial's, at the same place here
    token: str  # in a file of the folder, if the disk is that of the machine that calls
    host: str  # this machine, as the study calls it
    address: str
    cores: float
    memory_bytes: int | None  # no role may use more
    java: bool
    ready: int  # the answer by which to say that all is ready


@dataclass
class RemoteAgent:
    """Does what it is told until nobody tells it anything any more."""

    orders: AgentConfig
    wire: MessageStream
    place: TrialFolder
    sampler: Sampler = field(default_factory=lambda: Sampler(own_pid_namespace=False, own_network=False))
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    heard: float = field(default_factory=time.monotonic)
    draft: Path | None = None  # a file that has not come whole yet
    trouble: str | None = None  # why a file could not be written
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the sampler
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until told to end, or until nobody is there."""
        for work in (self._watch, self._sample, self._listen):
            threading.Thread(target=work, daemon=True).start()
        self._tell("note", name=f"host {self.orders.host}", text=describe(self.orders.address))
        self._answer(
            self.orders.ready,
            shared=self.place.shared,
            pid=os.getpid(),
            **(java_and_spark() if self.orders.java else {}),
        )
        for head, body in self.wire.heard():
            self.heard = time.monotonic()
            if head["kind"] == "end":
                return
            try:
                self._do(head, body)
            except OSError as error:
                self._answer(head.get("answer"), error=sentence(error))

    def _do(self, head: Head, body: bytes) -> None:
        kind = head["kind"]
        if kind == "start":
            self._start(head)
        elif kind == "signal":
            self._signal(head["number"], head["signal"])
        elif kind == "folder":
            self._write(lambda: Path(head["name"]).mkdir(parents=True, exist_ok=True))
        elif kind == "file":
            self._write(lambda: self._take(head, body))
        elif kind == "settle":
            trouble, self.trouble = self.trouble, None
            self._answer(head["answer"], **({"error": trouble} if trouble else {}))
        elif kind == "lack":
            lacking = [name for name, wanted in head["files"] if wanted and state(Path(name)) != tuple(wanted)]
            self._answer(head["answer"], lacking=lacking)
        elif kind == "logs":
            logs = self.place.folder / "logs"
            for path in files_below([logs]) if logs.exists() else []:
                self.wire.send_file(path, str(path.relative_to(logs)))
            self._answer(head["answer"])

    def _take(self, head: Head, body: bytes) -> None:
        self.draft = take_file(head, body, Path(head["name"]))

    def _write(self, work: Callable[[], None]) -> None:
        """Write something; what goes wrong is told when it is asked for."""
        if self.trouble is None:
            try:
                work()
            except OSError as error:
                self.trouble = sentence(error)

    def _answer(self, number: int | None, **head: Any) -> None:
        if number is not None:
            self._say("answer", answer=number, **head)

    def _say(self, kind: str, body: bytes = b"", **head: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody is there, which is noticed elsewhere
            self.wire.send(kind, body, **head)

    def _tell(self, kind: str, **fields: Any) -> None:
        """Send an event of this machine."""
        self._say("event", json.dumps({"kind": kind, "host": self.orders.host, **fields}).encode())

    def _start(self, head: Head) -> None:
        number, role = head["number"], head["role"]
        gloo = {"GLOO_SOCKET_IFNAME": name} if (name := interface(self.orders.address)) else {}
        known = {"TRAINOFF_ROLE": role, "TRAINOFF_EVENTS": str(self.place.events)}
        try:
            process = subprocess.Popen(
                dying_with_me(head["argv"]),
                env={**os.environ, **gloo, **head["env"], **known},
                stdin=subprocess.PIPE,  # closes when the guard ends, however it does
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._answer(head["answer"], error=f"{role} could not be started: {error}")
            return
        self.started[number] = process
        self._answer(head["answer"], pid=process.pid)
        assert process.stdout
        listening = threading.Thread(target=self._pass_on, args=(number, process.stdout), daemon=True)
        listening.start()
        threading.Thread(target=self._await_end, args=(number, process, listening), daemon=True).start()

    def _pass_on(self, number: int, source: IO[bytes]) -> None:
        while said := os.read(source.fileno(), 65536):
            self._say("said", said, number=number)

    def _await_end(self, number: int, process: subprocess.Popen[bytes], listening: threading.Thread) -> None:
        """Tell of a process's end, after its last words."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:
            self.sampler.last_look(process.pid)
            code = process.wait()
        listening.join(LAST_WORDS_S)
        self._say("ended", number=number, code=code)

    def _signal(self, number: int, signum: int) -> None:
        with contextlib.suppress(KeyError, ProcessLookupError):
            os.killpg(self.started[number].pid, signum)

    def _listen(self) -> None:
        """Pass on the events that processes here tell."""
        pipe = os.open(self.place.events, os.O_RDWR)  # for writing, too, so that it never ends
        with os.fdopen(pipe, "rb") as source:
            for line in source:
                self._say("event", line)

    def _sample(self) -> None:
        """Tell what each role uses, and see that none uses too much."""
        while not self.over.wait(self.sampler.period_s):
            with self.lock:
                self.sampler.sample()
                self._tell_samples()
            self._check_memory()

    def _watch(self) -> None:
        """See that somebody is still there; apart from those who speak, for they wait if nobody listens."""
        while time.monotonic() - self.heard < SILENCE_S:
            time.sleep(1.0)
        give_up()

    def _tell_samples(self) -> None:
        for role, used in self.sampler.by_role().items():
            self._tell("host-sample", role=role, **{name: getattr(used, name) for name in FIGURES}, pss=round(used.pss))

    def _check_memory(self) -> None:
        """End everything if a role uses more than it may, by a look that is closer than a sample."""
        limit = self.orders.memory_bytes
        if not limit:
            return
        with self.lock:  # meanwhile no process is taken off the list
            if not self._over(limit):
                return
            self.sampler.measure_memory()
            over = self._over(limit)
        if over:
            self._tell("over-memory", role=over[1], bytes=over[0], limit=limit)
            give_up()

    def _over(self, limit: int) -> tuple[int, str] | None:
        return max(
            ((round(used.pss), role) for role, used in self.sampler.by_role().items() if used.pss > limit), default=None
        )

    def end(self) -> None:
        """End every process, tell what they used, remove the trial's folder, and be gone."""
        for number in POLITE:
            signal.signal(number, signal.SIG_IGN)
        self.over.set()
        self._kill_all()
        self.place.remove()
        if self.draft:
            self.draft.unlink(missing_ok=True)
        leave = threading.Timer(LEAVE_S, os._exit, [1])  # whoever hears this may be gone without a sign
        leave.daemon = True
        leave.start()
        with self.lock:
            self.sampler.sample()
            self._tell_samples()
            for role, used in self.sampler.by_role().items():
                self._tell("host-spent", role=role, cpu_s=round(used.user_s + used.system_s, 3))
        whole = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._tell("host-usage", cpu_s=round(whole.ru_utime + whole.ru_stime, 3))
        os._exit(0)

    def _kill_all(self) -> None:
        deadline = time.monotonic() + LEAVE_S
        while left := [each for each in psutil.Process().children(recursive=True) if _lives(each)]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:  # the kernel does not let go of one
                break
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # orphans: only what is reaped is counted


def dying_with_me(argv: list[str]) -> list[str]:
    """The command, and a word to the kernel to kill it if the guard is killed, where there is a program for that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *argv] if setpriv and shutil.which(argv[0]) else argv


def give_up() -> None:
    """Let the main thread end everything, from another one."""
    os.kill(os.getpid(), signal.SIGTERM)


def _lives(process: psutil.Process) -> bool:
    """Whether it is more than an end that nobody has taken note of."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def main() -> None:
    orders = AgentConfig(**json.loads(sys.argv[1]))
    wire = MessageStream(sys.stdin.buffer, sys.stdout.buffer)
    adopt_orphans()
    pin(orders.cores)
    for number in POLITE:
        signal.signal(number, lambda *_: sys.exit())
    try:
        place = TrialFolder(Path(orders.folder), orders.token)
    except OSError as error:
        wire.send("answer", answer=orders.ready, error=sentence(error))
        return
    os.chdir(place.folder)
    agent = RemoteAgent(orders, wire, place)
    try:
        agent.run()
    finally:
        agent.end()


def interface(address: str) -> str | None:
    """The name of the interface that bears an address, which gloo wants to know."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def java_and_spark() -> dict[str, Any]:
    """Where this machine has Java and Spark, or what is wrong with them."""
    from trainoff.clusters.java import INSTALL, LEAST, find_java, home

    java = find_java()
    if java is None or java.lacks:
        what = f"another Java ({java.lacks})" if java else f"Java {LEAST} or later"
        return {"error": f"needs {what}; {INSTALL} there"}
    return {"java_home": str(java.home), "spark_home": str(home())}


def describe(address: str) -> str:
    """This machine in one line."""
    pinned, memory = len(cpus()), psutil.virtual_memory().total / 2**30
    return f"{address}, {pinned} of {psutil.cpu_count()} CPUs ({cpu_model()}), {memory:.1f} GiB, {platform.platform()}"


def pin(cores: float) -> None:
    """Keep this process and those that it starts to so many CPUs."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: max(1, math.ceil(cores))])


if __name__ == "__main__":
    main()
