"""Fingerprints: the SHA-256 of files, remembered, so that a large file is read once and not at every start."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from trainoff.data.dataset import Progress, silent

_CHUNK = 1 << 20


def combine(*parts: object) -> str:
    """One SHA-256 for several named parts: a maker, its version, what it is made from."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()


def sha256(path: Path, say: Progress = silent) -> str:
    """The SHA-256 of a file's content."""
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            say(f"checking {path.name}", file.tell(), total)
    return digest.hexdigest()


def remembered(path: Path, memory: Path) -> str:
    """The SHA-256 of a file, computed anew only if its size or its time of change differs from last time."""
    path = path.resolve()
    stat = path.stat()
    seen = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = memory / f"{combine(path)[:32]}.json"
    with suppress(OSError, ValueError):
        known = json.loads(note.read_text())
        if isinstance(known, dict) and all(known.get(key) == value for key, value in seen.items()):
            return str(known["sha256"])
    digest = sha256(path)
    with suppress(OSError):  # a cache that cannot be written only costs time here
        memory.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**seen, "sha256": digest}))
        draft.replace(note)
    return digest
