"""Atomic file writes: readers see the old content or the new, never a part of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trainoff.errors import TrainoffError


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
    """Open a draft beside `path`, which replaces it at the end of the block and is removed if the block raises."""
    draft = path.with_name(f".draft-{os.urandom(8).hex()}")
    file = draft.open("xb")  # a new file, so that no link is followed; unlike mkstemp's, its mode is the umask's
    try:
        with file:
            yield file
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace the content of a file at once; text is written as UTF-8."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user has named: at once, but into a device such as /dev/null."""
    if path.is_char_device():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    else:
        atomic_write(path, content)


@contextmanager
def writing(path: Path, what: str, advice: str = "choose another path") -> Iterator[None]:
    """Raise an error that says what cannot be written where, if the block raises an OSError."""
    try:
        yield
    except OSError as error:
        raise TrainoffError(f"{path}: the {what} cannot be written there ({error.strerror}); {advice}") from error


def sync(path: Path) -> None:
    """Return when the content of a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
