"""A study file on disk: its tables, the line of each key, and errors that name the line."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.suggestions import clean

MakeError = Callable[[str], TrainoffError]  # makes an error that names the place of a mistake

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_BOTH_WORKLOADS = (re.compile(r"^\s*workload\s*=", re.M), re.compile(r"^\s*\[\s*workload\s*\.", re.M))


def read_bytes(path: Path, make_error: MakeError, kind: str, advice: str, most: int = 256 * 1024) -> bytes:
    """Return the content of a user's file, which is not large; raise an error that says why it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except FileNotFoundError:
        raise make_error(f"there is no such file; {advice}") from None
    except IsADirectoryError:
        raise make_error(f"this is a folder; name a {kind} in it") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise make_error(f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > most:
        raise make_error(f"the file is larger than {most // 1024} KiB; that cannot be a {kind}")
    return raw


class Source:
    """The tables of a study file, and the line of each key in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = clean(str(path), longest=4096)
        text = self._text()
        try:
            self.tables: dict[str, Any] = tomllib.loads(text)
            self._lines = TomlLines(text)
        except RecursionError:
            raise self.error_at()("the lists or tables are nested too deeply to be a study") from None
        except ValueError as error:
            raise self._syntax_error(text, str(error)) from None
        if not self.tables:
            raise self.error_at()("the file is empty; a study needs at least `workload` and `engines`")

    def error_at(self, *key_path: str | int) -> MakeError:
        """Return a function that makes errors with the file and the line of a key."""
        line = self._lines.line(key_path) if key_path else None
        return self._error_on_line(line)

    def has(self, *key_path: str | int) -> bool:
        """Tell whether the file has something at a path of keys."""
        return key_path in self._lines

    def _error_on_line(self, line: int | None) -> MakeError:
        position = f"{self.label}, line {line}" if line else self.label
        return lambda message: TrainoffError(f"{position}: {message}")

    def _text(self) -> str:
        raw = read_bytes(self.path, self.error_at(), "study file", "name a study file, as in studies/quick.toml")
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self._error_on_line(line)("the file is not UTF-8 text; save it as UTF-8") from None

    def _syntax_error(self, text: str, message: str) -> TrainoffError:
        """Translate a message of tomllib: the line comes first, the commonest mistakes are explained."""
        position = _POSITION.search(message)
        line = int(position[1]) if position and position[1] else text.count("\n") + 1 if position else None
        make_error = self._error_on_line(line)
        if message.startswith("Cannot") and all(pattern.search(text) for pattern in _BOTH_WORKLOADS):
            return make_error(
                "TOML cannot have both `workload = ...` and [workload.NAME]; leave out the former: "
                "a single [workload.NAME] is used by itself, of several choose in [grid] workload = [...]"
            )
        if message.startswith("Cannot overwrite"):
            return make_error("this key is there twice; keep one")
        if "integer string conversion" in message:
            return make_error("a number has too many digits")
        what = clean(_POSITION.sub("", message), 200)
        column = f" (column {position[2]})" if position and position[2] else ""
        return make_error(f"this is not TOML: {what[:1].lower()}{what[1:]}{column}")


KeyPath = tuple[str | int, ...]  # ("grid", "workers", 1): the second value of `workers` in [grid]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_BLANK_IN_LIST = re.compile(r"(?:[ \t\r\n,]+|#[^\n]*)+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'  # up to two quotes may come right before the closing three
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


class TomlLines:
    """The line of every table, key and list item of a TOML text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._lines: dict[KeyPath, int] = {}
        self._tables: dict[KeyPath, int] = {}  # arrays of tables: how many so far
        with suppress(ValueError, IndexError):  # a missing line number is no reason to fail
            self._document()

    def line(self, key_path: KeyPath) -> int | None:
        """Return the line of a path of keys, or of the innermost table around it; None for the whole text."""
        for end in range(len(key_path), 0, -1):
            if key_path[:end] in self._lines:
                return self._lines[key_path[:end]]
        return None

    def __contains__(self, key_path: KeyPath) -> bool:
        return key_path in self._lines

    def _document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> KeyPath:
        """Read `[a.b]` or `[[a.b]]`; return the table to which the following keys belong."""
        double = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if double else 1
        parts = self._key()
        self._at = self._text.index("]", self._at) + (2 if double else 1)
        key_path: KeyPath = ()
        for part in parts[:-1]:
            key_path = self._inside((*key_path, part))
        key_path = (*key_path, parts[-1])
        if double:
            self._note(key_path, start)
            self._tables[key_path] = self._tables.get(key_path, 0) + 1
            key_path = self._inside(key_path)
        self._note(key_path, start)
        return key_path

    def _inside(self, key_path: KeyPath) -> KeyPath:
        """Return the path of the last table of an array; any other path as it is."""
        return (*key_path, self._tables[key_path] - 1) if key_path in self._tables else key_path

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        key_path: KeyPath = (*table, *self._key())
        self._note(key_path, start)
        self._at = self._text.index("=", self._at) + 1
        self._value(key_path)

    def _key(self) -> list[str]:
        """Read a key, dotted or quoted; return its parts."""
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

    def _value(self, key_path: KeyPath) -> None:
        self._skip(_BLANK)
        self._note(key_path, self._at)
        opening = self._text[self._at]
        if opening == "[":
            self._list(key_path)
        elif opening == "{":
            self._inline_table(key_path)
        else:
            self._skip(_STRING if opening in "\"'" else _SCALAR)

    def _list(self, key_path: KeyPath) -> None:
        self._at += 1
        index = 0
        self._skip(_BLANK_IN_LIST)
        while self._text[self._at] != "]":
            self._value((*key_path, index))
            index += 1
            self._skip(_BLANK_IN_LIST)
        self._at += 1

    def _inline_table(self, key_path: KeyPath) -> None:
        self._at += 1
        self._skip(_BLANK_IN_LIST)
        while self._text[self._at] != "}":
            self._pair(key_path)
            self._skip(_BLANK_IN_LIST)
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _note(self, key_path: KeyPath, at: int) -> None:
        """Note the first line of a path of keys and of every table that it opens."""
        line = bisect_right(self._starts, at)
        for end in range(len(key_path), 0, -1):
            if key_path[:end] in self._lines:
                return
            self._lines[key_path[:end]] = line
