"""The trial's folder on a host, at the same place as on the machine that calls."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

TOKEN = "hosts.token"  # a file by which a host that shares the caller's disk is known


class Place:
    """The trial's folder on this machine: made here, and removed at the end with every folder above that was made."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.shared = _read(folder / TOKEN) == token
        self.events = folder / "events"
        self._made: list[Path] = []
        if self.shared:
            self._made = [Path(tempfile.mkdtemp(prefix="trainoff-"))]
            self.events = self._made[0] / "events"
        else:
            self._make(folder)
        os.mkfifo(self.events, 0o600)

    def _make(self, folder: Path) -> None:
        if folder.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        self._made = new

    def remove(self) -> None:
        """Remove what was made, if nobody else has put something there."""
        if self._made:
            shutil.rmtree(self._made[0], ignore_errors=True)
        for folder in self._made[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def sentence(error: OSError) -> str:
    """What could not be written here, and what to do."""
    where = error.filename or "a file"
    if isinstance(error, FileExistsError):
        return f"{where} is there already; a machine can be among the hosts only once, whatever its names"
    return (
        f"{where} could not be made there ({error.strerror}); choose with --out and TRAINOFF_CACHE "
        "folders that can be made on all machines"
    )
