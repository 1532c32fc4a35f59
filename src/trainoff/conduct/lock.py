"""One timed trial at a time on this machine, however many `trainoff run` there are."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainoff.errors import TrainoffError


@contextmanager
def machine_lock(waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine for one trial. While another run holds it, `waiting` is told who, once a second."""
    with _open() as file:
        while not _try(file):
            waiting(f"waiting for another trainoff run (process {_holder(file)}) to finish its trial")
            time.sleep(1.0)
        _sign(file)
        yield


def _path() -> Path:
    return Path(os.environ.get("TRAINOFF_LOCK", Path(tempfile.gettempdir()) / "trainoff.lock"))


def _open() -> IO[str]:
    path = _path()
    try:
        return os.fdopen(_handle(path), "r+")
    except OSError as error:
        raise TrainoffError(
            f"{path}: the machine's lock cannot be opened ({error.strerror}); name another file in TRAINOFF_LOCK"
        ) from error


def _handle(path: Path) -> int:
    """Open the file without following a link; create it, writable for every user of the machine, if need be."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, 0o666)
        os.fchmod(handle, 0o666)  # the user's mask would keep others out
        return handle


def _try(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"


def _sign(file: IO[str]) -> None:
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
