"""The connection to one host: an ssh process that runs a remote agent there and carries all messages."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from trainoff.clusters.local import PROCESS_GRACE_S, Process
from trainoff.clusters.ssh import facts
from trainoff.clusters.ssh.client import FACTS_S, INSTALL, Ssh
from trainoff.errors import TrainoffError

END_S = 10.0  # how long an agent may take to end everything
PIPE_BUF = 4096  # bytes that are written to a pipe atomically


class Connection:
    """One host: `connect` returns its facts, `open` starts its agent, which then starts processes."""

    def __init__(self, host: str, ssh: Ssh, folder: Path) -> None:
        self.host, self._ssh, self._folder = host, ssh, folder
        self._ssh_log = folder / "logs" / f"ssh-{host.replace('/', '_')}.txt"
        self._popen: subprocess.Popen[bytes] | None = None
        self._stream: MessageStream  # from `connect` on
        self._ids = itertools.count(1)
        self._replies: dict[int, Future[Head]] = {}
        self._processes: dict[int, HostProcess] = {}
        self._end = threading.Event()
        self._opened = self._lost = False

    def connect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Connect to the host and return the facts of its Python; raise TrainoffError if that fails."""
        argv = self._ssh.command(self.host, self._ssh.agent(request))
        with self._ssh_log.open("ab") as log:
            try:
                self._popen = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
            except FileNotFoundError as error:
                raise TrainoffError(f"hosts are reached by ssh, which is not installed; {INSTALL}") from error
        assert self._popen.stdin
        assert self._popen.stdout
        self._stream = MessageStream(self._popen.stdout, self._popen.stdin)
        timeout = threading.Timer(FACTS_S, self._popen.kill)
        timeout.start()
        try:
            for line in self._popen.stdout:
                if line.startswith(facts.MARK.encode()):
                    found: dict[str, Any] = json.loads(line[len(facts.MARK) :])
                    return found
        finally:
            timeout.cancel()
        code = self._popen.wait()
        raise TrainoffError(self._ssh.explain(self.host, code, self._ssh_log.read_text(errors="replace")))

    def open(self, config: Mapping[str, Any]) -> Head:
        """Start the agent; return its reply when it is ready."""
        ready = self._new_request()
        try:
            self._stream.sink.write(json.dumps({**config, "ready": ready}).encode() + b"\n")
            self._stream.sink.flush()
        except OSError as error:
            raise self._gone() from error
        self._opened = True
        for work in (self._listen, self._beat):
            threading.Thread(target=work, daemon=True).start()
        return self._reply(ready)

    def send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        """Send a message to the agent, if it is still there."""
        with suppress(OSError, ValueError):
            self._stream.send(kind, body, **head)

    def request(self, kind: str, **head: Any) -> Head:
        """Send a request to the agent and return its reply; raise TrainoffError if it fails or the agent is gone."""
        number = self._new_request()
        self.send(kind, reply=number, **head)
        return self._reply(number)

    def start(self, argv: Sequence[str], env: Mapping[str, str], role: str, log: Path) -> HostProcess:
        """Start a process, whose log is kept here."""
        number = next(self._ids)
        process = self._processes[number] = HostProcess(self, number, role, log)
        process.remote_pid = self.request("start", number=number, argv=list(argv), env=dict(env), role=role)["pid"]
        return process

    def send_files(self, paths: Iterable[Path]) -> None:
        """Send the files that the host lacks, or has in another state."""
        files = [(str(path), state(path)) for path in files_below(paths)]
        for name in self.request("missing", files=files)["missing"]:
            self._send_file(Path(name))
        self.request("sync")

    def deliver(self, paths: Iterable[Path]) -> None:
        """Send folders and files, whatever the host has."""
        for path in paths:
            if path.is_dir():
                self.send("folder", name=str(path))
            else:
                self._send_file(path)
        self.request("sync")

    def _send_file(self, path: Path) -> None:
        try:
            self._stream.send_file(path, str(path))
        except (BrokenPipeError, ValueError) as error:
            raise self._gone() from error

    def close(self) -> None:
        """Let the agent end everything; return when it has ended, or does not react."""
        if not self._popen:
            return
        if self._opened:
            self.send("end")
        self._end.set()
        with suppress(OSError, ValueError):
            self._stream.sink.close()
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            self.send("beat")

    def _new_request(self) -> int:
        number = next(self._ids)
        self._replies[number] = Future()
        if self._lost:
            self._replies[number].set_result({"error": None})
        return number

    def _reply(self, number: int) -> Head:
        head = self._replies[number].result()
        del self._replies[number]
        if "error" in head:
            raise TrainoffError(f"{self.host}: {head['error']}") if head["error"] else self._gone()
        return head

    def _gone(self) -> TrainoffError:
        lines = self._ssh_log.read_text(errors="replace").strip().splitlines()
        reason = f" ({lines[-1].strip()})" if lines else ""
        return TrainoffError(f"the connection with {self.host} is lost{reason}")

    def _listen(self) -> None:
        """Handle messages until the agent is gone; run in a thread."""
        try:
            for head, body in self._stream.messages():
                self._handle(head, body)
        finally:
            self._lost = True
            for process in list(self._processes.values()):
                if process.exit_code is None and not self._end.is_set():
                    process.add_output(f"\n{self._gone()}\n".encode())
                process.ended(GONE)
            for reply in list(self._replies.values()):
                if not reply.done():
                    reply.set_result({"error": None})

    def _handle(self, head: Head, body: bytes) -> None:
        kind = head["kind"]
        if kind == "output":
            self._processes[head["number"]].add_output(body)
        elif kind == "ended":
            self._processes[head["number"]].ended(head["code"])
        elif kind == "reply" and (reply := self._replies.get(head["reply"])):
            reply.set_result(head)
        elif kind == "file":  # a log of the host, unless it is one that is kept here
            logs = (self._folder / "logs").resolve()
            path = (logs / head["name"]).resolve()
            kept = {process.log.resolve() for process in self._processes.values()}
            if path.is_relative_to(logs) and path not in kept:
                take_file(head, body, path)
        elif kind == "event":
            forward_event(body)


def forward_event(line: bytes) -> None:
    """Write an event of a host into the trial's pipe, with the time of this machine's clock.

    What is no event, or too long for one, is written as it came, or cut: the runner notes it in the record.
    """
    with suppress(ValueError, TypeError, RecursionError):
        line = json.dumps(json.loads(line) | {"t": time.monotonic()}).encode()
    if path := os.environ.get("TRAINOFF_EVENTS"):
        with suppress(OSError):
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.set_blocking(pipe, True)
                os.write(pipe, line.rstrip(b"\n")[: PIPE_BUF - 1] + b"\n")
            finally:
                os.close(pipe)


GONE = 255  # exit code of a process whose host is lost, as that of ssh
KILL_S = 10.0  # how long an agent may take to report the end of a killed process


class HostProcess(Process):
    """A running process on a host, with its PID there and its log here."""

    def __init__(self, link: Connection, number: int, role: str, log: Path) -> None:
        self.role, self.log = role, log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._link, self._number = link, number
        self.remote_pid = 0
        self._code: int | None = None
        self._over = threading.Event()
        log.touch()

    @property
    def pid(self) -> int:
        return self.remote_pid

    @property
    def exit_code(self) -> int | None:
        return self._code

    def add_output(self, output: bytes) -> None:
        """Append its output to the log."""
        with self.log.open("ab") as log:
            log.write(output)

    def ended(self, code: int) -> None:
        """Record its end, or that the agent is gone."""
        if not self._over.is_set():
            self._code = code
            self._over.set()

    def wait(self, timeout_s: float) -> int:
        if not self._over.wait(timeout_s):
            raise subprocess.TimeoutExpired([self.role], timeout_s)
        return self._code or 0

    def signal(self, number: signal.Signals) -> None:
        self._link.send("signal", number=self._number, signal=int(number))

    def stop(self, grace_s: float = PROCESS_GRACE_S) -> None:
        if self.exit_code is None and grace_s > 0:
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.wait(KILL_S)
        self.ended(GONE)


Head = dict[str, Any]

CHUNK = 2**20  # bytes of a file that travel in one message
BEAT_S = 5.0  # between two heartbeats of this machine
SILENCE_S = 60.0  # an agent without a message for this long ends everything


class MessageStream:
    """One end of a connection: any thread may send messages; one receives those of the other end."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self.sink = source, sink
        self._lock = threading.Lock()

    def send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        """Send one message; raise OSError if the other end is gone."""
        line = json.dumps({"kind": kind, "bytes": len(body), **head}).encode() + b"\n"
        with self._lock:
            self.sink.write(line + body)
            self.sink.flush()

    def messages(self) -> Iterator[tuple[Head, bytes]]:
        """Yield the messages of the other end, until it is gone."""
        with suppress(OSError, ValueError):  # the connection broke or was closed here
            while line := self._source.readline():
                head: Head = json.loads(line)
                body = self._source.read(head["bytes"])
                if len(body) < head["bytes"]:
                    return
                yield head, body

    def send_file(self, path: Path, name: str) -> None:
        """Send a file in pieces under a name, unless it was removed meanwhile."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            stat = path.stat()
            about = {"name": name, "mode": stat.st_mode & 0o777, "mtime_ns": stat.st_mtime_ns}
            piece, first = file.read(CHUNK), True
            while first or piece:
                following = file.read(CHUNK)
                self.send("file", piece, first=first, last=not following, **about)
                piece, first = following, False


def take_file(head: Head, body: bytes, path: Path) -> Path | None:
    """Append a piece to a draft, which replaces the file when it is complete; return the draft until then."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    if head["first"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        draft.touch(mode=head["mode"])
    with draft.open("ab") as file:
        file.write(body)
    if not head["last"]:
        return draft
    os.utime(draft, ns=(head["mtime_ns"], head["mtime_ns"]))
    draft.replace(path)
    return None


State = tuple[int, int]  # size and time of the last change, by which a file is recognised


def state(path: Path) -> State | None:
    """Return the state of a file, or None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files at some paths, those in folders included."""
    for path in paths:
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


class SentFiles:
    """The files of the trial's folder that a host has. Those that match the patterns of `private` are never sent."""

    def __init__(self, folder: Path, private: Iterable[str]) -> None:
        self._folder, self._private = folder, tuple(private)
        self._sent: dict[Path, State | None] = {}

    def updates(self) -> list[Path]:
        """Return what is new or changed since the last call, folders first."""
        found = [path for path in self._shared(self._folder) if path.is_dir() or path.is_file()]
        now = {path: None if path.is_dir() else state(path) for path in found}
        new = [path for path in found if path not in self._sent or self._sent[path] != now[path]]
        self._sent |= {path: now[path] for path in new}
        return sorted(new, key=lambda path: (now[path] is not None, path))

    def _shared(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if any(fnmatch(str(path.relative_to(self._folder)), pattern) for pattern in self._private):
                continue
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from self._shared(path)


TOKEN = "hosts.token"  # a file by which a host recognises that it shares the caller's disk


class TrialFolder:
    """The trial's folder on a host: made there, and removed at the end with every parent that was made for it."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.shared = False
        with suppress(OSError):
            self.shared = (folder / TOKEN).read_text() == token
        self.events = folder / "events"
        if self.shared:
            self._made = [Path(tempfile.mkdtemp(prefix="trainoff-"))]
            self.events = self._made[0] / "events"
        else:
            self._made = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(mode=0o700, parents=True)
        os.mkfifo(self.events, 0o600)

    def remove(self) -> None:
        """Remove the folder, and the parents that are empty."""
        shutil.rmtree(self._made[0], ignore_errors=True)
        for folder in self._made[1:]:
            with suppress(OSError):
                folder.rmdir()


def explain_os_error(error: OSError) -> str:
    """Return what could not be written, and what to do."""
    path = error.filename or "a file"
    if isinstance(error, FileExistsError):
        return f"{path} exists already; a machine can be among the hosts only once, whatever its names"
    return (
        f"{path} could not be made there ({error.strerror}); choose with --out and TRAINOFF_CACHE "
        "folders that can be made on all machines"
    )
