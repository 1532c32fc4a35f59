"""The live view's server: on loopback unless another address is asked for, and then only with a token."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.report.live.folder_watcher import Lookout
from trainoff.report.view.desk import Desk
from trainoff.report.view.doorkeeper import Doorkeeper, is_loopback, new_token
from trainoff.report.view.handler import Handler
from trainoff.reproductions.published import published_name

HOST = "127.0.0.1"
PORT = 8650


@dataclass(frozen=True)
class Wish:
    """What to show, and to whom."""

    folder: Path
    host: str = HOST
    port: int | None = None  # None: the usual one, or any other if that is taken
    token: bool = False  # ask for a token on this machine, too
    browser: bool = True


class Server(ThreadingHTTPServer):
    """A thread per request; all of them share one lookout and one desk."""

    daemon_threads = True
    allow_reuse_port = False  # two views never share a port

    def __init__(self, address: tuple[str, int], door: Doorkeeper, lookout: Lookout, desk: Desk) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.door = door
        self.lookout = lookout
        self.desk = desk
        self.name = secrets.token_hex(4)  # tells this view from an earlier one at the same address

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.port = int(self.socket.getsockname()[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no error; anything else is the user's to know."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            print(f"trainoff: a request failed: {sys.exception()!r}", file=sys.stderr)


def serve(wish: Wish, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    if published_name(wish.folder) is not None:
        hint = f"`trainoff report {wish.folder}` writes the page"
        raise TrainoffError(f"{wish.folder}: nothing changes there to be watched; {hint}")
    if wish.folder.exists() and not wish.folder.is_dir():
        raise TrainoffError(f"{wish.folder}: this is a file, not a folder of records")
    token = new_token() if wish.token or not is_loopback(wish.host) else None
    try:
        with Lookout(wish.folder) as lookout, _server(wish, Doorkeeper(wish.host, token), lookout) as server:
            address = f"http://{_named(wish.host)}:{server.port}/{f'?token={token}' if token else ''}"
            say(f"{wish.folder}, live: {address}")
            say("Ctrl-C ends the view; a run goes on without it")
            if wish.browser and _has_display():
                webbrowser.open(address)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("\nthe view has ended")


def _server(wish: Wish, door: Doorkeeper, lookout: Lookout) -> Server:
    desk = Desk(wish.folder, lookout)
    ports = [PORT, 0] if wish.port is None else [wish.port]
    for port in ports:
        try:
            return Server((wish.host, port), door, lookout, desk)
        except OverflowError:
            raise TrainoffError(f"--port {port}: expected a number from 0, for any that is free, to 65535") from None
        except UnicodeError:
            raise TrainoffError(f"--host {wish.host}: this is not the name of a machine") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port != PORT or len(ports) == 1:
                raise TrainoffError(_why_not(wish, port, error)) from error
    raise AssertionError("the last port is any that is free")


def _why_not(wish: Wish, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken; choose another with --port, or leave it out to have one found"
    if error.errno == errno.EACCES:
        return f"port {port} is not for ordinary users; choose one above 1023 with --port"
    return f"{wish.host} is not an address of this machine ({error.strerror}); --host 0.0.0.0 stands for all of them"


def _named(host: str) -> str:
    """As it stands in an address: of all addresses of this machine, its name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
