"""The remote agent: starts a trial's processes on a host, samples them, and kills them at the end.

It is started over ssh (clusters/ssh) and reads messages from its standard input. When that closes, or no message comes
for a minute, it kills every process and removes the trial's folder.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from trainoff.clusters.local import cpus
from trainoff.clusters.namespaces import adopt_orphans
from trainoff.clusters.ssh import connection
from trainoff.clusters.ssh.connection import Head, MessageStream, TrialFolder, explain_os_error
from trainoff.runner.machine import cpu_model
from trainoff.runner.sampler import Sampler

KILL_S = 5.0  # how long it may take to kill the processes, and then to report what they used
OUTPUT_S = 2.0  # how long it may take to read a process's output after its end
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
USAGE_FIELDS = ("user_s", "system_s", "switches", "read_bytes", "write_bytes", "rss", "processes", "threads")


@dataclass(frozen=True)
class AgentConfig:
    """What the runner's machine asks the agent to do."""

    folder: str  # the trial's folder, which has the same path on both machines
    token: str  # in a file of the folder, if both machines share the disk
    host: str  # this machine's name in the study
    address: str
    cores: float
    memory_bytes: int | None  # the limit of each role
    java: bool
    ready: int  # the number of the request that is answered when the agent is ready


@dataclass
class RemoteAgent:
    """Executes the messages of the runner's machine until the end is asked for or the connection is lost."""

    config: AgentConfig
    stream: MessageStream
    place: TrialFolder
    sampler: Sampler = field(default_factory=lambda: Sampler(pid_namespace=False, network=False))
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    last_message: float = field(default_factory=time.monotonic)
    draft: Path | None = None  # a file that has not been received whole yet
    write_error: str | None = None  # why a file could not be written
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the sampler
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Execute messages until the end is asked for or the connection is lost."""
        for target in (self._check_connection, self._sample, self._forward_events):
            threading.Thread(target=target, daemon=True).start()
        available, memory = f"{len(cpus())} of {psutil.cpu_count()}", psutil.virtual_memory().total / 2**30
        text = f"{self.config.address}, {available} CPUs ({cpu_model()}), {memory:.1f} GiB, {platform.platform()}"
        self._report("note", name=f"host {self.config.host}", text=text)
        installed = java_and_spark() if self.config.java else {}
        self._reply(self.config.ready, shared=self.place.shared, pid=os.getpid(), **installed)
        for head, body in self.stream.messages():
            self.last_message = time.monotonic()
            if head["kind"] == "end":
                return
            try:
                self._execute(head, body)
            except OSError as error:
                self._reply(head.get("reply"), error=explain_os_error(error))

    def _execute(self, head: Head, body: bytes) -> None:
        kind = head["kind"]
        if kind == "start":
            self._start(head)
        elif kind == "signal":
            with contextlib.suppress(KeyError, ProcessLookupError):
                os.killpg(self.started[head["number"]].pid, head["signal"])
        elif kind in ("folder", "file"):
            self._write(Path(head["name"]), head, body)
        elif kind == "sync":
            error, self.write_error = self.write_error, None
            self._reply(head["reply"], **({"error": error} if error else {}))
        elif kind == "missing":
            files = [(name, tuple(wanted)) for name, wanted in head["files"] if wanted]
            missing = [name for name, wanted in files if connection.state(Path(name)) != wanted]
            self._reply(head["reply"], missing=missing)
        elif kind == "logs":
            logs = self.place.folder / "logs"
            for path in connection.files_below([logs]) if logs.exists() else []:
                self.stream.send_file(path, str(path.relative_to(logs)))
            self._reply(head["reply"])

    def _write(self, path: Path, head: Head, body: bytes) -> None:
        """Write a file or folder; the first error is reported when the sender asks for the result (`sync`)."""
        if self.write_error is None:
            try:
                if head["kind"] == "folder":
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    self.draft = connection.take_file(head, body, path)
            except OSError as error:
                self.write_error = explain_os_error(error)

    def _reply(self, number: int | None, **head: Any) -> None:
        if number is not None:
            self._send("reply", reply=number, **head)

    def _send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # the connection is lost, which `run` notices
            self.stream.send(kind, body, **head)

    def _report(self, kind: str, **fields: Any) -> None:
        """Send an event with the name of this host."""
        self._send("event", json.dumps({"kind": kind, "host": self.config.host, **fields}).encode())

    def _start(self, head: Head) -> None:
        number, role = head["number"], head["role"]
        gloo = {"GLOO_SOCKET_IFNAME": name} if (name := interface(self.config.address)) else {}
        trial = {"TRAINOFF_ROLE": role, "TRAINOFF_EVENTS": str(self.place.events)}
        try:
            process = subprocess.Popen(
                killed_with_this(head["argv"]),
                env={**os.environ, **gloo, **head["env"], **trial},
                stdin=subprocess.PIPE,  # closes when the agent ends
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._reply(head["reply"], error=f"{role} could not be started: {error}")
            return
        self.started[number] = process
        self._reply(head["reply"], pid=process.pid)
        assert process.stdout
        reader = threading.Thread(target=self._forward_output, args=(number, process.stdout), daemon=True)
        reader.start()
        threading.Thread(target=self._await_end, args=(number, process, reader), daemon=True).start()

    def _forward_output(self, number: int, source: IO[bytes]) -> None:
        while output := os.read(source.fileno(), 65536):
            self._send("output", output, number=number)

    def _await_end(self, number: int, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        """Report the end of a process, after the end of its output."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:
            self.sampler.final_sample(process.pid)
            code = process.wait()
        reader.join(OUTPUT_S)
        self._send("ended", number=number, code=code)

    def _forward_events(self) -> None:
        """Forward the events of the processes on this host."""
        pipe = os.open(self.place.events, os.O_RDWR)  # opened for writing too, so that it never ends
        with os.fdopen(pipe, "rb") as source:
            for line in source:
                self._send("event", line)

    def _sample(self) -> None:
        """Report what each role uses, and end the agent if a role exceeds its memory limit."""
        limit = self.config.memory_bytes
        while not self.stopped.wait(self.sampler.period_s):
            with self.lock:
                self._report_samples()
                over = self.sampler.over_memory(limit) if limit else None
            if over:
                self._report("over-memory", role=over[0], bytes=over[1], limit=limit)
                terminate()

    def _check_connection(self) -> None:
        """End the agent when messages stay away; in a thread of its own, because threads that send may block."""
        while time.monotonic() - self.last_message < connection.SILENCE_S:
            time.sleep(1.0)
        terminate()

    def _report_samples(self) -> None:
        self.sampler.sample()
        for role, usage in self.sampler.by_role().items():
            figures = {name: getattr(usage, name) for name in USAGE_FIELDS}
            self._report("host-sample", role=role, **figures, pss=round(usage.pss))

    def end(self) -> None:
        """Kill every process, remove the trial's folder, report what the processes used, and exit."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.stopped.set()
        self._kill_all()
        self.place.remove()
        if self.draft:
            self.draft.unlink(missing_ok=True)
        timeout = threading.Timer(KILL_S, os._exit, [1])  # sending blocks if the connection is lost without notice
        timeout.daemon = True
        timeout.start()
        with self.lock:
            self._report_samples()
            for role, usage in self.sampler.by_role().items():
                self._report("host-spent", role=role, cpu_s=round(usage.user_s + usage.system_s, 3))
        total = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._report("host-usage", cpu_s=round(total.ru_utime + total.ru_stime, 3))
        os._exit(0)

    def _kill_all(self) -> None:
        deadline = time.monotonic() + KILL_S
        while left := [each for each in psutil.Process().children(recursive=True) if _runs(each)]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:  # one of them cannot be killed
                break
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # orphans: only what is reaped is counted


def killed_with_this(argv: list[str]) -> list[str]:
    """Return the command such that the kernel kills it with this process, if setpriv is installed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *argv] if setpriv and shutil.which(argv[0]) else argv


def terminate() -> None:
    """End the agent from another thread: the signal raises SystemExit in the main one."""
    os.kill(os.getpid(), signal.SIGTERM)


def _runs(process: psutil.Process) -> bool:
    """Return whether a process exists and is not a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def main() -> None:
    config = AgentConfig(**json.loads(sys.argv[1]))
    stream = MessageStream(sys.stdin.buffer, sys.stdout.buffer)
    adopt_orphans()
    if hasattr(os, "sched_setaffinity"):  # this process and those that it starts
        os.sched_setaffinity(0, cpus()[: max(1, math.ceil(config.cores))])
    for number in SIGNALS:
        signal.signal(number, lambda *_: sys.exit())
    try:
        place = TrialFolder(Path(config.folder), config.token)
    except OSError as error:
        stream.send("reply", reply=config.ready, error=explain_os_error(error))
        return
    os.chdir(place.folder)
    agent = RemoteAgent(config, stream, place)
    try:
        agent.run()
    finally:
        agent.end()


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address, for gloo."""
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(each.address == address for each in addresses)), None)


def java_and_spark() -> dict[str, Any]:
    """Return the paths of Java and Spark on this machine, or an error."""
    from trainoff.clusters.java import INSTALL, LEAST, find_java, home

    java = find_java()
    if java is None or java.lacks:
        what = f"another Java ({java.lacks})" if java else f"Java {LEAST} or later"
        return {"error": f"needs {what}; {INSTALL} there"}
    return {"java_home": str(java.home), "spark_home": str(home())}


if __name__ == "__main__":
    main()
