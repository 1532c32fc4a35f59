"""The connection with one host: an ssh that runs a guard there, through which everything goes."""

from __future__ import annotations

import contextlib
import errno
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

from trainoff.clusters.local import GRACE_S, Process
from trainoff.clusters.ssh import facts
from trainoff.clusters.ssh.client import FACTS_S, INSTALL, Ssh
from trainoff.errors import TrainoffError

END_S = 10.0  # how long a guard may take to end everything
PIPE_BUF = 4096  # a longer line may be mixed with others'


class Connection:
    """One host. `connect` returns its facts, `open` makes its guard ready; then processes can be started there."""

    def __init__(self, host: str, ssh: Ssh, folder: Path) -> None:
        self.host, self._ssh, self._folder = host, ssh, folder
        self._says = folder / "logs" / f"ssh-{host.replace('/', '_')}.txt"
        self._popen: subprocess.Popen[bytes] | None = None
        self._wire: MessageStream | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Head]] = {}
        self._processes: dict[int, HostProcess] = {}
        self._end = threading.Event()
        self._opened = self._lost = False

    def connect(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Call the host and hear what its Python says of itself; one sentence if that fails."""
        words = self._ssh.command(self.host, self._ssh.agent(asked))
        with self._says.open("ab") as said:
            try:
                self._popen = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
                )
            except FileNotFoundError as error:
                raise TrainoffError(f"hosts are reached by ssh, which is not here; {INSTALL}") from error
        assert self._popen.stdout
        self._wire = MessageStream(self._popen.stdout, self._stdin)
        patience = threading.Timer(FACTS_S, self._popen.kill)
        patience.start()
        try:
            for line in self._popen.stdout:
                if line.startswith(facts.MARK.encode()):
                    told: dict[str, Any] = json.loads(line[len(facts.MARK) :])
                    return told
        finally:
            patience.cancel()
        code = self._popen.wait()
        raise TrainoffError(self._ssh.explain(self.host, code, self._says.read_text(errors="replace")))

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._popen
        assert self._popen.stdin
        return self._popen.stdin

    def open(self, orders: Mapping[str, Any]) -> Head:
        """Let the guard begin; returns what it says when it is ready."""
        ready = self._expect()
        try:
            self._stdin.write(json.dumps({**orders, "ready": ready}).encode() + b"\n")
            self._stdin.flush()
        except OSError as error:
            raise self._gone() from error
        self._opened = True
        for work in (self._hear, self._beat):
            threading.Thread(target=work, daemon=True).start()
        return self._answer(ready)

    def send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        """Tell the guard something; if it is gone, there is nobody to tell."""
        assert self._wire
        with contextlib.suppress(OSError, ValueError):
            self._wire.send(kind, body, **head)

    def ask(self, kind: str, **head: Any) -> Head:
        """What the guard answers; an error if it cannot do it, or is gone."""
        number = self._expect()
        self.send(kind, answer=number, **head)
        return self._answer(number)

    def start(self, argv: Sequence[str], env: Mapping[str, str], role: str, log: Path) -> HostProcess:
        """Start a process; its log is kept here."""
        number = next(self._numbers)
        process = self._processes[number] = HostProcess(self, number, role, log)
        process.started(self.ask("start", number=number, argv=list(argv), env=dict(env), role=role)["pid"])
        return process

    def send_files(self, paths: Iterable[Path]) -> None:
        """Send the files that the host has not, or not as they are here."""
        files = [(str(path), state(path)) for path in files_below(paths)]
        for name in self.ask("lack", files=files)["lacking"]:
            self._send_file(Path(name))
        self.ask("settle")

    def deliver(self, news: Iterable[Path]) -> None:
        """Send folders and files, whatever the host has."""
        for path in news:
            if path.is_dir():
                self.send("folder", name=str(path))
            else:
                self._send_file(path)
        self.ask("settle")

    def _send_file(self, path: Path) -> None:
        assert self._wire
        try:
            self._wire.send_file(path, str(path))
        except (BrokenPipeError, ValueError) as error:
            raise self._gone() from error

    def fetch_logs(self) -> None:
        """Fetch what processes there have written into the folder of logs."""
        self.ask("logs")

    def close(self) -> None:
        """Let the guard end everything and go; returns when it is gone, or when it will not answer."""
        if not self._popen:
            return
        if self._opened:
            self.send("end")
        self._end.set()
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            self.send("beat")

    def _expect(self) -> int:
        number = next(self._numbers)
        self._answers[number] = Future()
        if self._lost:
            self._answers[number].set_result({"error": None})
        return number

    def _answer(self, number: int) -> Head:
        head = self._answers[number].result()
        del self._answers[number]
        if "error" in head:
            raise TrainoffError(f"{self.host}: {head['error']}") if head["error"] else self._gone()
        return head

    def _gone(self) -> TrainoffError:
        said = self._says.read_text(errors="replace").strip().splitlines()
        why = f" ({said[-1].strip()})" if said else ""
        return TrainoffError(f"the connection with {self.host} is lost{why}")

    def _hear(self) -> None:
        """Be the thread that listens, until the guard is gone."""
        assert self._wire
        try:
            for head, body in self._wire.heard():
                self._take(head, body)
        finally:
            self._lose()

    def _lose(self) -> None:
        """Nobody is there any more: nothing runs, and nothing will be answered."""
        self._lost = True
        for process in list(self._processes.values()):
            if process.exit_code is None and not self._end.is_set():
                process.hear(f"\n{self._gone()}\n".encode())
            process.ended(GONE)
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_result({"error": None})

    def _take(self, head: Head, body: bytes) -> None:
        kind = head["kind"]
        if kind == "said":
            self._processes[head["number"]].hear(body)
        elif kind == "ended":
            self._processes[head["number"]].ended(head["code"])
        elif kind == "answer" and (answer := self._answers.get(head["answer"])):
            answer.set_result(head)
        elif kind == "file":
            self._take_log(head, body)
        elif kind == "event":
            forward_event(body)

    def _take_log(self, head: Head, body: bytes) -> None:
        """Keep a log that a process there has written, unless one of that name is ours."""
        logs = (self._folder / "logs").resolve()
        path = (logs / head["name"]).resolve()
        own = {process.log.resolve() for process in self._processes.values()}
        if path.is_relative_to(logs) and path not in own:
            take_file(head, body, path)


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


GONE = 255  # how a process ended whose host is lost: as an ssh does
KILL_S = 10.0  # how long a guard may take to see a process ended that it has killed


class HostProcess(Process):
    """A running process on a host. Its number there is its `pid`; its log is here."""

    def __init__(self, link: Connection, number: int, role: str, log: Path) -> None:
        self.role, self.log = role, log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._link, self._number = link, number
        self._pid = 0
        self._code: int | None = None
        self._over = threading.Event()
        log.touch()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._code

    def started(self, pid: int) -> None:
        """The guard has started it."""
        self._pid = pid

    def hear(self, said: bytes) -> None:
        """It has said something."""
        with self.log.open("ab") as log:
            log.write(said)

    def ended(self, code: int) -> None:
        """The guard has seen its end, or the guard is gone."""
        if not self._over.is_set():
            self._code = code
            self._over.set()

    def wait(self, timeout_s: float) -> int:
        if not self._over.wait(timeout_s):
            raise subprocess.TimeoutExpired([self.role], timeout_s)
        return self._code or 0

    def signal(self, number: signal.Signals) -> None:
        self._link.send("signal", number=self._number, signal=int(number))

    def stop(self, grace_s: float = GRACE_S) -> None:
        if self.exit_code is None and grace_s > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(KILL_S)
        self.ended(GONE)


Head = dict[str, Any]

CHUNK = 2**20  # bytes of a file that travel in one message
BEAT_S = 5.0  # how often this machine says that it is there
SILENCE_S = 60.0  # after so long without a word from it a guard ends everything


class MessageStream:
    """One end: it sends messages whole, whichever thread sends them, and hears those of the other end."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink
        self._lock = threading.Lock()

    def send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        """Raises OSError if nobody is there any more."""
        line = json.dumps({"kind": kind, "bytes": len(body), **head}).encode() + b"\n"
        with self._lock:
            self._sink.write(line + body)
            self._sink.flush()

    def heard(self) -> Iterator[tuple[Head, bytes]]:
        """Every message as it comes, until the other end is gone."""
        with suppress(OSError, ValueError):  # the connection broke, or was closed here
            while line := self._source.readline():
                head: Head = json.loads(line)
                body = self._source.read(head["bytes"])
                if len(body) < head["bytes"]:
                    return
                yield head, body

    def send_file(self, path: Path, name: str) -> None:
        """Send a file piece by piece under a name; one that is gone meanwhile is left out."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            stat = path.stat()
            about = {"name": name, "mode": stat.st_mode & 0o777, "mtime_ns": stat.st_mtime_ns}
            piece, first = file.read(CHUNK), True
            while first or piece:
                following = file.read(CHUNK)
                self.send("file", piece, first=first, last=not following, **about)
                piece, first = following, False


def take_file(head: Head, body: bytes, path: Path) -> Path | None:
    """Add a piece to a file, which others see when it is whole; until then, returns where it is."""
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


State = tuple[int, int]  # size and time of the last change: who has both has the file


def state(path: Path) -> State | None:
    """What a file is like now; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that paths name, those in folders included."""
    for path in paths:
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


class SentFiles:
    """What one host has of the trial's folder. `private` are patterns of what is for nobody else."""

    def __init__(self, folder: Path, private: Iterable[str]) -> None:
        self._folder, self._private = folder, tuple(private)
        self._sent: dict[Path, State | None] = {}

    def news(self) -> list[Path]:
        """The folders and files that the host has not, or not as they are now, folders first; from now on it has."""
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


TOKEN = "hosts.token"  # a file by which a host that shares the caller's disk is known


class TrialFolder:
    """The trial's folder on this machine: made here, and removed at the end with every folder above that was made."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.shared = _read(folder / TOKEN) == token
        self.events = folder / "events"
        self._made: list[Path] = []
        if self.shared:
            self._made = [Path(tempfile.mkdtemp(prefix="trainoff-"))]
            self.events = self._made[0] / "events"
        else:
            self._make(folder)
        os.mkfifo(self.events, 0o600)

    def _make(self, folder: Path) -> None:
        if folder.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        self._made = new

    def remove(self) -> None:
        """Remove what was made, if nobody else has put something there."""
        if self._made:
            shutil.rmtree(self._made[0], ignore_errors=True)
        for folder in self._made[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def sentence(error: OSError) -> str:
    """What could not be written here, and what to do."""
    where = error.filename or "a file"
    if isinstance(error, FileExistsError):
        return f"{where} is there already; a machine can be among the hosts only once, whatever its names"
    return (
        f"{where} could not be made there ({error.strerror}); choose with --out and TRAINOFF_CACHE "
        "folders that can be made on all machines"
    )
