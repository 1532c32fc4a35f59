"""Records that are read once, for whoever looks again and again: they never change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainoff.records.reading import Damaged, folders, holds_record, read
from trainoff.records.schema import Record


class Shelf:
    """The records below a folder that may not be there yet; a look reads only what is new.

    A folder is known again by its name and number, so that a record that was deleted and made anew is read anew. A
    damaged one is read again when its folder changes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[tuple[str, int], Record] = {}
        self._damaged: dict[tuple[str, int, int], Damaged] = {}

    @property
    def records(self) -> list[Record]:
        return list(self._held.values())

    @property
    def damaged(self) -> list[Damaged]:
        return list(self._damaged.values())

    def look(self) -> bool:
        """Read what is new and forget what is gone; whether there was any of it."""
        held: dict[tuple[str, int], Record] = {}
        damaged: dict[tuple[str, int, int], Damaged] = {}
        for path, number in self._places():
            if found := self._held.get((path, number)):
                held[path, number] = found
                continue
            key = path, number, _changed(path)
            one = self._damaged.get(key) or read(path)
            if isinstance(one, Damaged):
                damaged[key] = one
            else:
                held[path, number] = one
        news = held.keys() != self._held.keys() or damaged.keys() != self._damaged.keys()
        self._held, self._damaged = held, damaged
        return news

    def folder_of(self, name: str) -> Path | None:
        """Where the newest attempt at a trial lies, by its id; or one attempt, by its folder's name."""
        found = [
            (record.attempt, path)
            for (path, _), record in self._held.items()
            if record.trial_id == name or Path(path).name == name
        ]
        return Path(max(found)[1]) if found else None

    def _places(self) -> Iterator[tuple[str, int]]:
        """The folders that hold a record, each with its number; one that is known is not even opened."""
        if not self.folder.is_dir():
            return
        if holds_record(str(self.folder)):
            yield str(self.folder), self.folder.stat().st_ino
            return
        for path, number in folders(str(self.folder)):
            if (path, number) in self._held or holds_record(path):
                yield path, number
            else:
                yield from (deep for deep in folders(path) if deep in self._held or holds_record(deep[0]))


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # as quick as it can be
    except OSError:
        return 0
