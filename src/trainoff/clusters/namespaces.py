"""A trial's PID and network namespaces, and port forwarding for pages such as TensorBoard's.

No orphan survives a PID namespace, ports cannot clash, and `lo` counts the bytes of one trial.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from trainoff.clusters.local import call

_CLONE = {"mount": 0x00020000, "user": 0x10000000, "pid": 0x20000000, "network": 0x40000000}
_MS_REC_PRIVATE = 0x4000 | 0x40000
_PR_SET_CHILD_SUBREAPER = 36
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

LINUX = sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, where there is no PID namespace."""
    if LINUX:
        call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(network: bool, lab: bool = False) -> None:
    """Leave the machine's namespaces; children forked from now on live in a new PID namespace.

    In a lab other users than root become root of a user namespace, which entering the nodes' networks requires.
    """
    flags = _CLONE["pid"] | _CLONE["mount"] | (_CLONE["network"] if network else 0)
    if os.geteuid() == 0:
        call("unshare", flags)
        return
    uid, gid = os.getuid(), os.getgid()
    call("unshare", flags | _CLONE["user"])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{0 if lab else uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{0 if lab else gid} {gid} 1")


def settle(network: bool) -> None:
    """As PID 1 of the namespace, mount a /proc that shows only this trial, and set the loopback up."""
    call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    if network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))


def why_not() -> str | None:
    """Return why trials cannot have namespaces here, or None. A child process tries to enter them."""
    if os.environ.get("TRAINOFF_ISOLATION") == "process-group":
        return "TRAINOFF_ISOLATION asks for process groups"
    if not LINUX:
        return f"namespaces are a Linux feature; this is {sys.platform}"
    return _failed_attempt()


@cache
def _failed_attempt() -> str | None:
    done = subprocess.run([sys.executable, "-P", "-m", "trainoff.clusters.namespaces"], capture_output=True, text=True)
    return done.stdout.strip() or (None if done.returncode == 0 else done.stderr.strip()[-200:])


CHUNK = 65536
LOCALHOST = "127.0.0.1"


def open_in_namespace(path: Path, host: str, port: int) -> None:
    """Forward connections to the Unix socket at a path to a port in this namespace."""
    listener = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)  # left by an earlier page
    with _short(path) as name:
        listener.bind(name)
    listener.listen()
    _forward(listener, lambda: socket.create_connection((host, port)))


class PortForward:
    """A port on this machine's loopback that is forwarded to the Unix socket at a path, until it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.create_server((LOCALHOST, 0))
        self.url = f"http://{LOCALHOST}:{self._listener.getsockname()[1]}"
        _forward(self._listener, self._connect)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        with _short(self._path) as name:
            connection.connect(name)
        return connection

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread that accepts
        self._listener.close()


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of the path that fits into the 107 characters of a socket's address."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _forward(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Forward the connections of a listener until it is closed, in threads."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = connect()
                except OSError:
                    client.close()
                    continue
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_copy, args=(source, sink), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction of a connection, to its end."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    try:  # to enter the namespaces; print the reason if that fails
        unshare(network=True)
        if os.fork():
            os.wait()
        else:
            settle(network=True)
    except OSError as error:
        print(error)
