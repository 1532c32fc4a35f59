"""`trainoff view`: the report, live, in the browser, while a study runs. Reads, and never writes."""

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
    """What to show, and to whom."""

    folder: Path
    host: str = HOST
    port: int | None = None  # None: the usual one, or any other if that is taken
    token: bool = False  # ask for a token on this machine, too
    browser: bool = True


class Server(ThreadingHTTPServer):
    """A thread per request; all of them share one watcher and one desk."""

    daemon_threads = True
    allow_reuse_port = False  # two views never share a port

    def __init__(self, address: tuple[str, int], auth: Auth, watcher: FolderWatcher, page_cache: PageCache) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.auth = auth
        self.watcher = watcher
        self.page_cache = page_cache
        self.name = secrets.token_hex(4)  # tells this view from an earlier one at the same address

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.port = int(self.socket.getsockname()[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no error; anything else is the user's to know."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            print(f"trainoff: a request failed: {sys.exception()!r}", file=sys.stderr)


def serve(options: ViewOptions, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    if published_name(options.folder) is not None:
        hint = f"`trainoff report {options.folder}` writes the page"
        raise TrainoffError(f"{options.folder}: nothing changes there to be watched; {hint}")
    if options.folder.exists() and not options.folder.is_dir():
        raise TrainoffError(f"{options.folder}: this is a file, not a folder of records")
    token = new_token() if options.token or not is_loopback(options.host) else None
    try:
        with FolderWatcher(options.folder) as watcher, _server(options, Auth(options.host, token), watcher) as server:
            address = f"http://{_named(options.host)}:{server.port}/{f'?token={token}' if token else ''}"
            say(f"{options.folder}, live: {address}")
            say("Ctrl-C ends the view; a run goes on without it")
            if options.browser and _has_display():
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
            raise TrainoffError(f"--port {port}: expected a number from 0, for any that is free, to 65535") from None
        except UnicodeError:
            raise TrainoffError(f"--host {options.host}: this is not the name of a machine") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port != PORT or len(ports) == 1:
                raise TrainoffError(_why_not(options, port, error)) from error
    raise AssertionError("the last port is any that is free")


def _why_not(options: ViewOptions, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken; choose another with --port, or leave it out to have one found"
    if error.errno == errno.EACCES:
        return f"port {port} is not for ordinary users; choose one above 1023 with --port"
    return f"{options.host} is not an address of this machine ({error.strerror}); --host 0.0.0.0 stands for all of them"


def _named(host: str) -> str:
    """As it stands in an address: of all addresses of this machine, its name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


HEARTBEAT_S = 15.0
RETRY_MS = 2000  # after which a page that lost its connection asks again
MOST_WATCHERS = 64
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
    """GET and HEAD of four routes; everything else is refused."""

    protocol_version = "HTTP/1.1"
    server_version = "trainoff"
    sys_version = ""
    timeout = 60  # seconds that a silent or stuck reader keeps its thread

    @property
    def _server(self) -> Server:
        return cast("Server", self.server)

    def do_GET(self) -> None:
        try:
            if self._may_enter():
                self._answer()
        except TrainoffError as error:  # a record that the page cannot be made of
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the reader has gone

    do_HEAD = do_GET

    def refuse(self) -> None:
        self._refuse(
            HTTPStatus.METHOD_NOT_ALLOWED, "this view only shows; nothing can be changed here", Allow="GET, HEAD"
        )

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = refuse

    def _may_enter(self) -> bool:
        auth, port = self._server.auth, self._server.port
        asked = urlsplit(self.path)
        if len(self.headers.get_all("Host") or []) != 1 or not auth.knows_host(self.headers["Host"]):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the address that `trainoff view` printed")
            return False
        if not auth.knows_token(asked.query, self.headers["Cookie"], port):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong; `trainoff view` printed it")
            return False
        if auth.token and asked.path == "/" and asked.query:  # so that the token stands in no history
            self._send(HTTPStatus.SEE_OTHER, TEXT, b"", Location="/", **{"Set-Cookie": auth.cookie(port)})
            return False
        return True

    def _answer(self) -> None:
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
        """The page, told what it shows at least: then its first question for news need not be answered by itself."""
        seen = self._id(self._server.watcher.sight())
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
        """Server-sent events, until the reader leaves or the view ends."""
        watcher = self._server.watcher
        with watcher.watching(MOST_WATCHERS) as room:
            if not room:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are watching")
                return
            self.close_connection = True
            self._head(HTTPStatus.OK, "text/event-stream", None, {"Connection": "close"})
            if self.command == "HEAD":
                return
            sight = watcher.sight()
            self.wfile.write(f"retry: {RETRY_MS}\n\n".encode())
            self._tell("progress", sight)
            asked = parse_qs(urlsplit(self.path).query).get("seen", [None])[0]
            if (self.headers["Last-Event-ID"] or asked) != self._id(sight):
                self._tell("records", sight)
            while not watcher.over:
                sight = self._tell_news(sight, watcher.wait(sight, HEARTBEAT_S))

    def _tell_news(self, before: FolderState, now: FolderState) -> FolderState:
        if now == before:
            self.wfile.write(b": still here\n\n")
        if now.moment != before.moment:
            self._tell("progress", now)
        if now.records != before.records:
            self._tell("records", now)
        return now

    def _tell(self, event: str, sight: FolderState) -> None:
        data: Any = sight.progress if event == "progress" else {"version": sight.records}
        known = f"id: {self._id(sight)}\n" if event == "records" else ""
        self.wfile.write(f"event: {event}\n{known}data: {json.dumps(data)}\n\n".encode())

    def _id(self, sight: FolderState) -> str:
        """What a page that comes back has seen of the records; another view begins to count anew."""
        return f"{self._server.name}-{sight.records}"

    def _refuse(self, status: HTTPStatus, why: str, **more: str) -> None:
        self.close_connection = True  # whatever else is on its way here is not read
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
        """For what is no proper request at all."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return address == "localhost" or (is_number(address) and ipaddress.ip_address(address).is_loopback)


def is_number(address: str) -> bool:
    """Whether an address is an IP number and not a name, which anybody's name server could give any meaning."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Auth:
    """Judges requests by their headers and query."""

    address: str  # where the server listens
    token: str | None

    def knows_host(self, header: str | None) -> bool:
        """Whether the `Host` is ours: a page elsewhere whose name was made to lead here comes with its own name."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in (*LOOPBACK, self.address.lower()):
            return True
        everywhere = is_number(self.address) and ipaddress.ip_address(self.address).is_unspecified
        return everywhere and (is_number(name) or name == socket.gethostname().lower())

    def knows_token(self, query: str, cookies: str | None, port: int) -> bool:
        """Whether the token comes along, in the address or in the cookie that was given for it."""
        if self.token is None:
            return True
        shown = [*parse_qs(query).get("token", []), self._kept(cookies, port)]
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in shown)

    def cookie(self, port: int) -> str:
        """The cookie that stands for the token from then on; of this port, as cookies belong to whole machines."""
        return f"{_name(port)}={self.token}; HttpOnly; SameSite=Strict; Path=/"

    def _kept(self, cookies: str | None, port: int) -> str:
        try:
            kept = SimpleCookie(cookies or "").get(_name(port))
        except CookieError:
            return ""
        return kept.value if kept else ""


def _name(port: int) -> str:
    return f"trainoff-{port}"
