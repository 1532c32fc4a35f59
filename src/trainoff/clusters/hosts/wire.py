"""What travels between this machine and the guard on a host: messages with a head of JSON, and bytes behind some."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Head = dict[str, Any]

CHUNK = 2**20  # bytes of a file that travel in one message
BEAT_S = 5.0  # how often this machine says that it is there
SILENCE_S = 60.0  # after so long without a word from it a guard ends everything


class Wire:
    """One end: it sends messages whole, whichever thread sends them, and hears those of the other end."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink
        self._lock = threading.Lock()

    def send(self, kind: str, body: bytes = b"", **head: Any) -> None:
        """Raises OSError if nobody is there any more."""
        line = json.dumps({"kind": kind, "bytes": len(body), **head}).encode() + b"\n"
        with self._lock:
            self._sink.write(line + body)
            self._sink.flush()

    def heard(self) -> Iterator[tuple[Head, bytes]]:
        """Every message as it comes, until the other end is gone."""
        with suppress(OSError, ValueError):  # the connection broke, or was closed here
            while line := self._source.readline():
                head: Head = json.loads(line)
                body = self._source.read(head["bytes"])
                if len(body) < head["bytes"]:
                    return
                yield head, body

    def send_file(self, path: Path, name: str) -> None:
        """Send a file piece by piece under a name; one that is gone meanwhile is left out."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            stat = path.stat()
            about = {"name": name, "mode": stat.st_mode & 0o777, "mtime_ns": stat.st_mtime_ns}
            piece, first = file.read(CHUNK), True
            while first or piece:
                following = file.read(CHUNK)
                self.send("file", piece, first=first, last=not following, **about)
                piece, first = following, False


def take_file(head: Head, body: bytes, path: Path) -> Path | None:
    """Add a piece to a file, which others see when it is whole; until then, returns where it is."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    if head["first"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        draft.touch(mode=head["mode"])
    with draft.open("ab") as file:
        file.write(body)
    if not head["last"]:
        return draft
    os.utime(draft, ns=(head["mtime_ns"], head["mtime_ns"]))
    draft.replace(path)
    return None
