"""Where in a TOML text each key stands: the line numbers that Python's own reader does not give."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress

Spot = tuple[str | int, ...]  # ("grid", "workers", 1): the second value of `workers` in [grid]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_BLANK_IN_LIST = re.compile(r"(?:[ \t\r\n,]+|#[^\n]*)+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'  # up to two quotes may stand right before the closing three
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


class Lines:
    """The line of every table, key and list item of a TOML text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._lines: dict[Spot, int] = {}
        self._tables: dict[Spot, int] = {}  # arrays of tables: how many so far
        with suppress(ValueError, IndexError):  # a line number is a help, never a reason to fail
            self._document()

    def line(self, spot: Spot) -> int | None:
        """The line of a spot, or of the nearest thing around it; None for the whole text."""
        for end in range(len(spot), 0, -1):
            if spot[:end] in self._lines:
                return self._lines[spot[:end]]
        return None

    def __contains__(self, spot: Spot) -> bool:
        return spot in self._lines

    def _document(self) -> None:
        table: Spot = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> Spot:
        """Read `[a.b]` or `[[a.b]]`; the table that the following keys belong to."""
        double = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if double else 1
        parts = self._key()
        self._at = self._text.index("]", self._at) + (2 if double else 1)
        spot: Spot = ()
        for part in parts[:-1]:
            spot = self._inside((*spot, part))
        spot = (*spot, parts[-1])
        if double:
            self._note(spot, start)
            self._tables[spot] = self._tables.get(spot, 0) + 1
            spot = self._inside(spot)
        self._note(spot, start)
        return spot

    def _inside(self, spot: Spot) -> Spot:
        """The last table of an array of tables; any other spot as it is."""
        return (*spot, self._tables[spot] - 1) if spot in self._tables else spot

    def _pair(self, table: Spot) -> None:
        start = self._at
        spot: Spot = (*table, *self._key())
        self._note(spot, start)
        self._at = self._text.index("=", self._at) + 1
        self._value(spot)

    def _key(self) -> list[str]:
        """Read a key, dotted or quoted, as its parts."""
        parts = []
        while True:
            self._skip(_BLANK)
            quoted = _STRING.match(self._text, self._at)
            found = quoted or _BARE_KEY.match(self._text, self._at)
            if found is None:
                raise ValueError("no key where one must be")
            parts.append(tomllib.loads(f"key = {found[0]}")["key"] if quoted else found[0])
            self._at = found.end()
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, spot: Spot) -> None:
        self._skip(_BLANK)
        self._note(spot, self._at)
        opening = self._text[self._at]
        if opening == "[":
            self._list(spot)
        elif opening == "{":
            self._inline_table(spot)
        else:
            self._skip(_STRING if opening in "\"'" else _SCALAR)

    def _list(self, spot: Spot) -> None:
        self._at += 1
        index = 0
        self._skip(_BLANK_IN_LIST)
        while self._text[self._at] != "]":
            self._value((*spot, index))
            index += 1
            self._skip(_BLANK_IN_LIST)
        self._at += 1

    def _inline_table(self, spot: Spot) -> None:
        self._at += 1
        self._skip(_BLANK_IN_LIST)
        while self._text[self._at] != "}":
            self._pair(spot)
            self._skip(_BLANK_IN_LIST)
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _note(self, spot: Spot, at: int) -> None:
        """Remember the first line of a spot and of every table it opens on the way."""
        line = bisect_right(self._starts, at)
        for end in range(len(spot), 0, -1):
            if spot[:end] in self._lines:
                return
            self._lines[spot[:end]] = line
