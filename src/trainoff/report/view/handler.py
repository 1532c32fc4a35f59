"""Answers one request: the page, its data, its events, or a log. No path from a request reaches the file system."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from trainoff.errors import TrainoffError
from trainoff.report.live.folder_watcher import Sight

if TYPE_CHECKING:
    from trainoff.report.live.server import Server

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
        door, port = self._server.door, self._server.port
        asked = urlsplit(self.path)
        if len(self.headers.get_all("Host") or []) != 1 or not door.knows_host(self.headers["Host"]):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this is not the address that `trainoff view` printed")
            return False
        if not door.knows_token(asked.query, self.headers["Cookie"], port):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong; `trainoff view` printed it")
            return False
        if door.token and asked.path == "/" and asked.query:  # so that the token stands in no history
            self._send(HTTPStatus.SEE_OTHER, TEXT, b"", Location="/", **{"Set-Cookie": door.cookie(port)})
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
        seen = self._id(self._server.lookout.sight())
        page = self._server.desk.page().replace(b" data-live>", f' data-live="{seen}">'.encode(), 1)
        self._send(HTTPStatus.OK, HTML, page)

    def _data(self) -> None:
        version, data = self._server.desk.json()
        tag = f'"{self._server.name}-{version}"'
        if self.headers["If-None-Match"] == tag:
            self._send(HTTPStatus.NOT_MODIFIED, JSON, b"", ETag=tag)
        else:
            self._send(HTTPStatus.OK, JSON, data, ETag=tag)

    def _log(self, trial_id: str) -> None:
        text = self._server.lookout.log(trial_id)
        if text is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no trial of that name is known")
        else:
            self._send(HTTPStatus.OK, TEXT, text.encode(errors="replace"))

    def _events(self) -> None:
        """Server-sent events, until the reader leaves or the view ends."""
        lookout = self._server.lookout
        with lookout.watching(MOST_WATCHERS) as room:
            if not room:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are watching")
                return
            self.close_connection = True
            self._head(HTTPStatus.OK, "text/event-stream", None, {"Connection": "close"})
            if self.command == "HEAD":
                return
            sight = lookout.sight()
            self.wfile.write(f"retry: {RETRY_MS}\n\n".encode())
            self._tell("progress", sight)
            asked = parse_qs(urlsplit(self.path).query).get("seen", [None])[0]
            if (self.headers["Last-Event-ID"] or asked) != self._id(sight):
                self._tell("records", sight)
            while not lookout.over:
                sight = self._tell_news(sight, lookout.wait(sight, HEARTBEAT_S))

    def _tell_news(self, before: Sight, now: Sight) -> Sight:
        if now == before:
            self.wfile.write(b": still here\n\n")
        if now.moment != before.moment:
            self._tell("progress", now)
        if now.records != before.records:
            self._tell("records", now)
        return now

    def _tell(self, event: str, sight: Sight) -> None:
        data: Any = sight.progress if event == "progress" else {"version": sight.records}
        known = f"id: {self._id(sight)}\n" if event == "records" else ""
        self.wfile.write(f"event: {event}\n{known}data: {json.dumps(data)}\n\n".encode())

    def _id(self, sight: Sight) -> str:
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
