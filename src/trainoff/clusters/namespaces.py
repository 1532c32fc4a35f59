"""A trial's PID and network namespaces, and a way for pages such as TensorBoard's out of them.

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
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1

LINUX = sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own: the next best thing to a PID namespace."""
    if LINUX:
        call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(network: bool, lab: bool = False) -> None:
    """Leave the machine's namespaces; children forked from now on live in a PID namespace of their own.

    Who is not root on the machine is in a lab, for only root may go from one node's network to another's.
    """
    wanted = _CLONE["pid"] | _CLONE["mount"] | (_CLONE["network"] if network else 0)
    if os.geteuid() == 0:
        call("unshare", wanted)
        return
    uid, gid = os.getuid(), os.getgid()
    call("unshare", wanted | _CLONE["user"])
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{0 if lab else uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{0 if lab else gid} {gid} 1")


def settle(network: bool) -> None:
    """Inside, as process 1: a /proc that shows only this trial, and a loopback that is up."""
    call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    if network:
        _loopback_up()


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def why_not() -> str | None:
    """Why trials cannot have namespaces here, or None if they can. Tried for real, in a process of its own."""
    if os.environ.get("TRAINOFF_ISOLATION") == "process-group":
        return "TRAINOFF_ISOLATION asks for process groups"
    if not LINUX:
        return f"namespaces are a Linux feature; this is {sys.platform}"
    return _tried()


@cache
def _tried() -> str | None:
    """Try to enter namespaces, once: a plan asks for each of its trials."""
    tried = subprocess.run([sys.executable, "-P", "-m", "trainoff.clusters.namespaces"], capture_output=True, text=True)
    return tried.stdout.strip() or (None if tried.returncode == 0 else tried.stderr.strip()[-200:])


def _try() -> None:
    """Enter the namespaces and leave again; prints what stood in the way."""
    unshare(network=True)
    inner = os.fork()
    if inner == 0:
        try:
            settle(network=True)
        except OSError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(inner, 0)


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


if __name__ == "__main__":
    try:
        _try()
    except OSError as error:
        print(error)
