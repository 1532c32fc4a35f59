"""A way to a page that a training system shows while it trains, such as TensorBoard, out of the trial's own network.

Inside, a socket in the trial's folder leads to the page; outside, a port of the loopback leads to that socket.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK = 65536
HERE = "127.0.0.1"

Connect = Callable[[], socket.socket]


def open_in_namespace(path: Path, host: str, port: int) -> None:
    """Let whoever connects to the socket at a path reach a port."""
    listener = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)  # of a page before this one
    with _short(path) as name:
        listener.bind(name)
    listener.listen()
    _serve(listener, lambda: socket.create_connection((host, port)))


class PortForward:
    """A port on the loopback of this machine that leads to the socket at a path, until it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.create_server((HERE, 0))
        self.url = f"http://{HERE}:{self._listener.getsockname()[1]}"
        _serve(self._listener, self._connect)

    def _connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        with _short(self._path) as name:
            line.connect(name)
        return line

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits there
        self._listener.close()


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the path that fits into the 107 characters of a socket's address."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _serve(listener: socket.socket, connect: Connect) -> None:
    threading.Thread(target=_accept, args=(listener, connect), daemon=True).start()


def _accept(listener: socket.socket, connect: Connect) -> None:
    while True:
        try:
            visitor, _ = listener.accept()
        except OSError:
            return
        try:
            page = connect()
        except OSError:
            visitor.close()
            continue
        for source, sink in ((visitor, page), (page, visitor)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """All that comes from one side, to its end."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
