"""One timed trial at a time on this machine, however many `trainoff run` there are."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from trainoff.errors import TrainoffError

NAME = "trainoff.lock"
ASK_S = 1.0


TURN_S = 1.5 * ASK_S  # how long one who has had the machine leaves it to those who wait


class _Held(Protocol):
    def close(self) -> None: ...


@contextmanager
def machine_lock(waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine for one trial. While another run holds it, `waiting` is told who.

    On Linux the lock is a name that only one process can listen on: it needs no file that somebody could
    delete, holds for all users, and ends with its holder. Elsewhere it is a file in /tmp.
    Runs that wait take turns. TRAINOFF_LOCK gives it another name, for runs that may go on side by side.
    """
    name = os.environ.get("TRAINOFF_LOCK", NAME)
    take = _listen if sys.platform == "linux" else _lock_file
    while (held := take(name)) is None:
        holder = _who(name)  # to ask is also to say that somebody waits
        waiting(f"waiting for another trainoff run (process {holder}) to finish its trial")
        time.sleep(ASK_S)
    try:
        yield
    finally:
        wanted = _wanted(held)
        held.close()
        if wanted:
            time.sleep(TURN_S)


def _wanted(held: _Held) -> bool:
    """Whether another run has asked who holds the lock: then it is waiting for it."""
    if not isinstance(held, socket.socket):
        return False
    held.setblocking(False)
    with suppress(OSError):
        held.accept()[0].close()
        return True
    return False


def _listen(name: str) -> _Held | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(name))
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise TrainoffError(f"the machine's lock cannot be had ({error.strerror}): is a sandbox in the way?") from error


def _address(name: str) -> bytes:
    """In the abstract name space, which has no files."""
    return b"\0" + name.encode()[-100:]


def _who(name: str) -> str:
    """The process that holds the lock, as the kernel knows it."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(ASK_S)
            asking.connect(_address(name))
            pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return str(pid)
    return "unknown"


def _lock_file(name: str) -> _Held | None:
    path = Path("/tmp") / Path(name).name
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise TrainoffError(f"{path}: the machine's lock cannot be opened ({error.strerror})") from error
    file = os.fdopen(handle, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        file.close()
        return None
