"""The live view: the report in the browser, up to date while a study runs. It only reads.

The server answers requests in a thread each. One more thread checks the folder about once a second for all open pages,
and only while a page is open.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Self, cast
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from trainoff.analysis import newest
from trainoff.errors import TrainoffError
from trainoff.records import STAGING, Record, RecordCache, abandoned
from trainoff.report.html import compose, render
from trainoff.report.progress import PLAN, PROGRESS, RunningTrial, RunProgress
from trainoff.reproductions.published import published_name

HOST = "127.0.0.1"
PORT = 8650


@dataclass(frozen=True)
class ViewOptions:
    """The folder to show, and where to serve it."""

    folder: Path
    host: str = HOST
    port: int | None = None  # None: 8650, or another if that is taken
    token: bool = False  # require a token also on this machine
    browser: bool = True


class Server(ThreadingHTTPServer):
    """An HTTP server with a thread per request; all threads share a watcher and a page cache."""

    daemon_threads = True
    allow_reuse_port = False  # no two views share a port

    def __init__(self, address: tuple[str, int], auth: Auth, watcher: FolderWatcher, page_cache: PageCache) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.auth = auth
        self.watcher = watcher
        self.page_cache = page_cache
        self.name = secrets.token_hex(4)  # distinguishes this view from an earlier one at the same address

    def server_bind(self) -> None:
        """Bind the socket without a reverse lookup of the host's name."""
        TCPServer.server_bind(self)
        self.port = int(self.socket.getsockname()[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the client has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            print(f"trainoff: a request failed: {sys.exception()!r}", file=sys.stderr)


def serve(options: ViewOptions, say: Callable[[str], None]) -> None:
    """Serve the live view until Ctrl-C."""
    if published_name(options.folder) is not None:
        hint = f"`trainoff report {options.folder}` writes the page"
        raise TrainoffError(f"{options.folder}: published records do not change; {hint}")
    if options.folder.exists() and not options.folder.is_dir():
        raise TrainoffError(f"{options.folder}: this is a file, not a folder of records")
    token = secrets.token_urlsafe(24) if options.token or not is_loopback(options.host) else None
    try:
        with FolderWatcher(options.folder) as watcher, _server(options, Auth(options.host, token), watcher) as server:
            host = f"[{options.host}]" if ":" in options.host else options.host
            if options.host in ("0.0.0.0", "::"):  # all addresses of this machine
                host = socket.gethostname()
            address = f"http://{host}:{server.port}/{f'?token={token}' if token else ''}"
            say(f"{options.folder}, live: {address}")
            say("Ctrl-C ends the view, not the run")
            display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
            if options.browser and display:
                webbrowser.open(address)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("\nthe view has ended")


def _server(options: ViewOptions, auth: Auth, watcher: FolderWatcher) -> Server:
    page_cache = PageCache(options.folder, watcher)
    ports = [PORT, 0] if options.port is None else [options.port]
    for port in ports:
        try:
            return Server((options.host, port), auth, watcher, page_cache)
        except OverflowError:
            raise TrainoffError(f"--port {port}: expected a number from 0 (any free port) to 65535") from None
        except UnicodeError:
            raise TrainoffError(f"--host {options.host}: this is not a host name") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port != PORT or len(ports) == 1:
                raise TrainoffError(_bind_error(options, port, error)) from error
    raise AssertionError("port 0 is always free")


def _bind_error(options: ViewOptions, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken; choose another with --port, or leave --port out to use any free port"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; choose one above 1023 with --port"
    return f"{options.host} is not an address of this machine ({error.strerror}); --host 0.0.0.0 stands for all of them"


HEARTBEAT_S = 15.0
RETRY_MS = 2000  # after which a page that lost its connection reconnects
MOST_SUBSCRIBERS = 64
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
JSON, TEXT, HTML = "application/json", "text/plain; charset=utf-8", "text/html; charset=utf-8"


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD on four routes, and refuses everything else."""

    protocol_version = "HTTP/1.1"
    server_version = "trainoff"
    sys_version = ""
    timeout = 60  # seconds after which a silent client loses its thread

    @property
    def _server(self) -> Server:
        return cast("Server", self.server)

    def do_GET(self) -> None:
        try:
            if self._authorise():
                self._route()
        except TrainoffError as error:  # such as a damaged series
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone

    do_HEAD = do_GET

    def refuse(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "the live view is read-only", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = refuse

    def _authorise(self) -> bool:
        """Return whether the request may be answered; otherwise a refusal or a redirection has been sent."""
        auth, port = self._server.auth, self._server.port
        url = urlsplit(self.path)
        if len(self.headers.get_all("Host") or []) != 1 or not auth.knows_host(self.headers["Host"]):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the address that `trainoff view` printed")
            return False
        if not auth.knows_token(url.query, self.headers["Cookie"], port):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong; `trainoff view` printed it")
            return False
        if auth.token and url.path == "/" and url.query:  # keeps the token out of the history
            self._send(HTTPStatus.SEE_OTHER, TEXT, b"", Location="/", **{"Set-Cookie": auth.cookie(port)})
            return False
        return True

    def _route(self) -> None:
        path = urlsplit(self.path).path
        if path == "/":
            self._page()
        elif path == "/data.json":
            self._data()
        elif path == "/events":
            self._events()
        elif path.startswith("/log/"):
            self._log(unquote(path.removeprefix("/log/")))
        elif path == "/favicon.ico":
            self._send(HTTPStatus.NO_CONTENT, TEXT, b"")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _page(self) -> None:
        """Send the page with the version of its records, so that its first request for events does not reload it."""
        seen = self._id(self._server.watcher.state())
        page = self._server.page_cache.page().replace(b" data-live>", f' data-live="{seen}">'.encode(), 1)
        self._send(HTTPStatus.OK, HTML, page)

    def _data(self) -> None:
        version, data = self._server.page_cache.json()
        tag = f'"{self._server.name}-{version}"'
        if self.headers["If-None-Match"] == tag:
            self._send(HTTPStatus.NOT_MODIFIED, JSON, b"", ETag=tag)
        else:
            self._send(HTTPStatus.OK, JSON, data, ETag=tag)

    def _log(self, trial_id: str) -> None:
        text = self._server.watcher.log(trial_id)
        if text is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no trial of that name is known")
        else:
            self._send(HTTPStatus.OK, TEXT, text.encode(errors="replace"))

    def _events(self) -> None:
        """Send server-sent events until the client leaves or the view ends."""
        watcher = self._server.watcher
        with watcher.subscribed(MOST_SUBSCRIBERS) as accepted:
            if not accepted:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
                return
            self.close_connection = True
            self._head(HTTPStatus.OK, "text/event-stream", None, {"Connection": "close"})
            if self.command == "HEAD":
                return
            state = watcher.state()
            self.wfile.write(f"retry: {RETRY_MS}\n\n".encode())
            self._send_event("progress", state)
            seen = parse_qs(urlsplit(self.path).query).get("seen", [None])[0]
            if (self.headers["Last-Event-ID"] or seen) != self._id(state):
                self._send_event("records", state)
            while not watcher.over:
                before, state = state, watcher.wait(state, HEARTBEAT_S)
                if state == before:
                    self.wfile.write(b": heartbeat\n\n")
                if state.moment != before.moment:
                    self._send_event("progress", state)
                if state.records != before.records:
                    self._send_event("records", state)

    def _send_event(self, event: str, state: FolderState) -> None:
        data: Any = state.progress if event == "progress" else {"version": state.records}
        known = f"id: {self._id(state)}\n" if event == "records" else ""
        self.wfile.write(f"event: {event}\n{known}data: {json.dumps(data)}\n\n".encode())

    def _id(self, state: FolderState) -> str:
        """Return the version of the records; another view has other versions."""
        return f"{self._server.name}-{state.records}"

    def _refuse(self, status: HTTPStatus, why: str, **more: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._send(status, TEXT, f"{why}\n".encode(), Connection="close", **more)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, **more: str) -> None:
        self._head(status, kind, len(body), more)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int | None, more: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.send_header("Content-Length", str(length))
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the user."""


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return address == "localhost" or (is_ip_address(address) and ipaddress.ip_address(address).is_loopback)


def is_ip_address(address: str) -> bool:
    """Return whether an address is numeric; a name may resolve to anything."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Auth:
    """Checks the host and the token of requests."""

    address: str  # where the server listens
    token: str | None

    def knows_host(self, header: str | None) -> bool:
        """Return whether the `Host` is this server: after DNS rebinding, another site's page sends its own name."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in (*LOOPBACK, self.address.lower()):
            return True
        everywhere = is_ip_address(self.address) and ipaddress.ip_address(self.address).is_unspecified
        return everywhere and (is_ip_address(name) or name == socket.gethostname().lower())

    def knows_token(self, query: str, cookies: str | None, port: int) -> bool:
        """Return whether the query or the cookie has the token."""
        if self.token is None:
            return True
        tokens = parse_qs(query).get("token", [])
        with suppress(CookieError):
            if cookie := SimpleCookie(cookies or "").get(f"trainoff-{port}"):
                tokens.append(cookie.value)
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in tokens)

    def cookie(self, port: int) -> str:
        """Return the cookie that replaces the token; its name has the port, as cookies are shared by all ports."""
        return f"trainoff-{port}={self.token}; HttpOnly; SameSite=Strict; Path=/"


INTERVAL_S = 1.0
BACK_OFF = 4.0  # pause after making a page, as a multiple of the time that took


@dataclass(frozen=True)
class FolderState:
    """The state of the folder; both version numbers count up."""

    records: int  # changes with the records
    moment: int  # changes with the progress
    progress: dict[str, Any]


class FolderWatcher:
    """Watches a folder in a thread, as long as there are subscribers."""

    def __init__(self, folder: Path) -> None:
        self.cache = RecordCache(folder)
        self._progress = TrialProgress(lambda: self.cache.records)
        self._runs: list[LiveRun] = []
        self._changed = threading.Condition()
        self._refreshing = threading.Lock()
        self._state = FolderState(0, 0, {})
        self._refreshed_at = self._backed_off_until = -INTERVAL_S
        self._pending = False  # whether there are records that have not been announced
        self._subscribers = 0
        self.over = False  # whether the view has ended
        self._thread = threading.Thread(target=self._watch, name="folder watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()
        self._thread.join()

    @contextmanager
    def subscribed(self, most: int) -> Iterator[bool]:
        """Subscribe during the block; yields False if there are too many subscribers already."""
        with self._changed:
            accepted = self._subscribers < most
            self._subscribers += accepted
            self._changed.notify_all()
        try:
            yield accepted
        finally:
            with self._changed:
                self._subscribers -= accepted

    def state(self) -> FolderState:
        """Return the state of the folder, at most a second old."""
        self._refresh()
        return self._state

    def wait(self, before: FolderState, seconds: float) -> FolderState:
        """Return the state when it differs from `before`, or after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._state != before, seconds)
            return self._state

    def back_off(self, cost_s: float) -> None:
        """Announce no new records for a while after making a page, which took `cost_s`: the machine is busy."""
        self._backed_off_until = max(self._backed_off_until, time.monotonic() + BACK_OFF * cost_s)

    def log(self, trial_id: str) -> str | None:
        """Return the log of a running or recorded trial; None if the trial is unknown."""
        self._refresh()
        for run in self._runs:
            if run.trial and run.trial.trial_id == trial_id and (staged := run.staged()):
                return full_log(staged)
        folder = self.cache.folder_of(trial_id)
        return full_log(folder) if folder else None

    def _watch(self) -> None:
        while not self.over:
            with self._changed:
                self._changed.wait_for(lambda: self.over or self._subscribers)
            self._refresh()
            with self._changed:
                self._changed.wait_for(lambda: self.over, INTERVAL_S)

    def _refresh(self) -> None:
        """Check the folder, unless that was done a moment ago."""
        with self._refreshing:
            if time.monotonic() - self._refreshed_at < INTERVAL_S / 2:
                return
            self._runs = find_runs(self.cache.folder)  # before the records: a run that has ended has stored all of its
            with suppress(OSError):  # a folder was removed meanwhile; the next refresh notices
                self._pending = self.cache.refresh() or self._pending
            progress = self._progress.progress(self._runs)
            self._refreshed_at = time.monotonic()
            announce = self._pending and self._refreshed_at >= self._backed_off_until
            self._pending = self._pending and not announce
            before = self._state
            if announce or progress != before.progress:
                with self._changed:
                    moment = before.moment + (progress != before.progress)
                    self._state = FolderState(before.records + announce, moment, progress)
                    self._changed.notify_all()


_PROGRESS = msgspec.json.Decoder(RunProgress)  # checks the type of every field
_PLAN = msgspec.json.Decoder(list[str])


@dataclass(frozen=True)
class LiveRun:
    """A run, as of its progress file."""

    folder: Path  # its scratch folder
    progress: RunProgress
    alive: bool

    @property
    def age(self) -> float:
        """Seconds since the progress file was written."""
        return max(0.0, time.time() - self.progress.at) if self.alive else 0.0

    @property
    def trial(self) -> RunningTrial | None:
        return self.progress.running if self.alive else None

    def staged(self) -> Path | None:
        """Return the scratch folder of the running trial."""
        if trial := self.trial:
            with suppress(OSError):
                entries = self.folder.parent.iterdir()
                return next((entry for entry in entries if entry.name.rpartition("-")[0] == trial.trial_id), None)
        return None


def find_runs(folder: Path) -> list[LiveRun]:
    """Return the runs in a study's folder, or in a folder of studies."""
    pattern = f"{STAGING}/run-*" if (folder / STAGING).is_dir() else f"*/{STAGING}/run-*"
    with suppress(OSError):  # such as a folder that was removed meanwhile
        return [run for entry in folder.glob(pattern) if (run := _read(entry))]
    return []


def _read(folder: Path) -> LiveRun | None:
    dead = abandoned(folder)  # before reading, so that the progress of a run that is alive is not older than that
    try:
        return LiveRun(folder, _PROGRESS.decode((folder / PROGRESS).read_bytes()), not dead)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):  # being created or removed, or of another version
        return None


@dataclass
class TrialProgress:
    """The progress of all runs of a folder; after their end, that of the trials they had planned."""

    records: Callable[[], Sequence[Record]]
    _plans: dict[Path, tuple[str, ...]] = field(default_factory=dict)  # the trials of the latest runs
    _last: dict[str, Any] | None = None  # their progress while they were alive

    def progress(self, runs: Sequence[LiveRun]) -> dict[str, Any]:
        """Return what pages are sent, given the present runs."""
        if runs:
            self._plans = {run.folder: self._plans.get(run.folder) or _plan(run.folder) for run in runs}
        if alive := [run for run in runs if run.alive]:
            waiting = all(run.trial is None and run.progress.note for run in alive)
            self._last = self._sum(alive, "waiting" if waiting else "running")
            return self._last
        if runs:
            return self._sum(runs, "stopped")
        if self._last:
            return self._after_end(self._last)
        latest = {record.trial_id: record for record in sorted(self.records(), key=lambda one: one.attempt)}
        done = sum(not record.unfinished for record in latest.values())
        state = "waiting" if not latest else "ended" if done == len(latest) else "stopped"
        return {**self._sum([], state), "done": done}

    def _after_end(self, last: dict[str, Any]) -> dict[str, Any]:
        """Return the progress after the runs are gone: ended if all planned trials have a record, otherwise stopped."""
        recorded = {record.trial_id for record in self.records() if not record.unfinished}
        planned = {trial_id for plan in self._plans.values() for trial_id in plan}
        state = "ended" if planned <= recorded else "stopped"
        return {**last, "state": state, "done": len(planned & recorded), "left_s": None, "note": None, "running": []}

    def _sum(self, runs: Sequence[LiveRun], state: str) -> dict[str, Any]:
        """Return the total of the runs; those with the same plan share the work. Times include the file's age."""
        done: dict[tuple[str, ...], int] = {}
        for run in runs:
            plan = self._plans[run.folder]
            done[plan] = max(done.get(plan, 0), run.progress.done)
        active = runs and state in ("running", "waiting")
        return {
            "done": sum(done.values()),
            "total": sum(map(len, done)) if runs else None,
            "left_s": max(0.0, max(run.progress.left_s - run.age for run in runs)) if active else None,
            "gone_s": max((run.progress.gone_s + run.age for run in runs), default=0.0),
            "state": state,
            "note": next((run.progress.note for run in runs if run.alive and run.progress.note), None),
            "running": [_trial(run, run.trial) for run in runs if run.trial],
        }


def _plan(folder: Path) -> tuple[str, ...]:
    with suppress(OSError, msgspec.DecodeError):
        return tuple(_PLAN.decode((folder / PLAN).read_bytes()))
    return ()


def _trial(run: LiveRun, trial: RunningTrial) -> dict[str, Any]:
    staged = run.staged()
    log = last_lines(staged) if staged else []
    return {**asdict(trial), "seconds": trial.seconds + run.age, "log": log}


class PageCache:
    """The page and its data, made once per version of the records."""

    def __init__(self, folder: Path, watcher: FolderWatcher) -> None:
        self._folder = folder
        self._watcher = watcher
        self._lock = threading.Lock()
        self._version = -1
        self._json = b""
        self._page = b""

    def json(self) -> tuple[int, bytes]:
        """Return the newest attempt at every trial as JSON, and the version of the records."""
        with self._lock:
            self._update()
            if not self._json:
                records = [record.to_json() for record in newest(self._watcher.cache.records)]
                self._json = json.dumps({"folder": str(self._folder), "records": records}).encode()
            return self._version, self._json

    def page(self) -> bytes:
        """Return the page."""
        with self._lock:
            self._update()
            if not self._page:
                start = time.monotonic()
                content = compose(self._folder, self._watcher.cache.records, self._watcher.cache.damaged)
                self._page = render(content, live=True).encode()
                self._watcher.back_off(time.monotonic() - start)
            return self._page

    def _update(self) -> None:
        version = self._watcher.state().records
        if version != self._version:
            self._json = self._page = b""
            self._version = version


MOST_BYTES = 256 * 1024  # of each file of a full log
MOST_FILES = 32
LAST_LINES = 12
LAST_BYTES = 8192  # enough for the last lines
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(staged: Path) -> list[str]:
    """Return the last lines of the log of a running trial that was written to last."""
    paths = sorted(_log_files(staged), key=_modified)
    return tail(paths[-1], LAST_BYTES).splitlines()[-LAST_LINES:] if paths else []


def full_log(folder: Path) -> str:
    """Return the log of a trial: its own, then that of every process of the cluster under its role."""
    parts = []
    for path in _log_files(folder):
        if text := tail(path, MOST_BYTES):
            parts.append(text if path.parent == folder else f"\n==== {path.stem} ====\n{text}")
    return "".join(parts)


def _log_files(folder: Path) -> list[Path]:
    """Return the logs in a folder: a record has one, a running trial has one of each process besides."""
    return [path for path in [folder / "log.txt", *sorted(folder.glob("logs/*.txt"))[:MOST_FILES]] if path.exists()]


def tail(path: Path, most: int) -> str:
    """Return the end of a log as text, without colours; only of a regular file, and no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        file.seek(max(0, status.st_size - most))
        text = file.read(most).decode(errors="replace")
    if status.st_size > most:
        text = text.partition("\n")[2]  # without the rest of a line
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # of a progress bar its last state
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def _modified(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
