"""The ends of logs, of trials under way and of records."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

MOST_BYTES = 256 * 1024  # of one file, for a page that shows a log
MOST_FILES = 32
LAST_LINES = 12
SOME_BYTES = 8192  # hold that many lines
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(staged: Path) -> list[str]:
    """The last lines of whichever process of a trial under way spoke last."""
    spoken = sorted(files(staged), key=_when)
    return tail(spoken[-1], SOME_BYTES).splitlines()[-LAST_LINES:] if spoken else []


def whole(folder: Path) -> str:
    """The log of a trial: its own, then that of every process of the cluster under its role."""
    parts = []
    for path in files(folder):
        if said := tail(path, MOST_BYTES):
            parts.append(said if path.parent == folder else f"\n==== {path.stem} ====\n{said}")
    return "".join(parts)


def files(folder: Path) -> list[Path]:
    """The logs in a folder; a record has one, a trial under way one of each process besides."""
    return [path for path in [folder / "log.txt", *sorted(folder.glob("logs/*.txt"))[:MOST_FILES]] if path.exists()]


def tail(path: Path, most: int) -> str:
    """The end of a log as text, without colours; only of an ordinary file, wherever a link might lead."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            return ""
        file.seek(max(0, about.st_size - most))
        text = file.read(most).decode(errors="replace")
    if about.st_size > most:
        text = text.partition("\n")[2]  # what is left of the first line says little
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # of a progress bar its last state
    return "\n".join(_COLOURS.sub("", line) for line in lines)


def _when(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
