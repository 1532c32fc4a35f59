"""The server of the live view: the report in the browser, up to date while a study runs. It only reads."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from trainoff.errors import TrainoffError
from trainoff.report.live.folder_watcher import FolderState, FolderWatcher, PageCache
from trainoff.reproductions.published import published_name

__all__ = ["ViewOptions", "serve"]


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
