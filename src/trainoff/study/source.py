"""A study file as it stands on disk: its tables, and the sentence that points at a line of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study.suggestions import clean
from trainoff.study.where import Lines

Complain = Callable[[str], TrainoffError]  # makes the error that says where a mistake stands

_LARGEST = 256 * 1024
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_BOTH_WORKLOADS = (re.compile(r"^\s*workload\s*=", re.M), re.compile(r"^\s*\[\s*workload\s*\.", re.M))


class Source:
    """The tables of a study file and where in the file each of them stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = clean(str(path), longest=4096)
        text = self._text()
        try:
            self.tables: dict[str, Any] = tomllib.loads(text)
            self._lines = Lines(text)
        except RecursionError:
            raise self.at()("the lists or tables are nested too deeply to be a study") from None
        except ValueError as error:
            raise self._syntax_error(text, str(error)) from None
        if not self.tables:
            raise self.at()("the file is empty; a study needs at least `workload` and `engines`")

    def at(self, *spot: str | int) -> Complain:
        """Make errors that begin with the file and the line of `spot`."""
        line = self._lines.line(spot) if spot else None
        return self._on_line(line)

    def has(self, *spot: str | int) -> bool:
        """Whether something stands at a spot of the file."""
        return spot in self._lines

    def _on_line(self, line: int | None) -> Complain:
        place = f"{self.label}, line {line}" if line else self.label
        return lambda message: TrainoffError(f"{place}: {message}")

    def _text(self) -> str:
        try:
            with self.path.open("rb") as file:
                raw = file.read(_LARGEST + 1)
        except FileNotFoundError:
            raise self.at()("there is no such file; name a study file, as in studies/quick.toml") from None
        except IsADirectoryError:
            raise self.at()("this is a folder; name a study file in it") from None
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            reason = getattr(error, "strerror", None) or str(error)
            raise self.at()(f"the file cannot be read ({reason})") from None
        if len(raw) > _LARGEST:
            raise self.at()(f"the file is larger than {_LARGEST // 1024} KiB; that cannot be a study")
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self._on_line(line)("the file is not UTF-8 text; save it as UTF-8") from None

    def _syntax_error(self, text: str, message: str) -> TrainoffError:
        """Python's words on what is not TOML, with the line in front and the commonest in plain words."""
        place = _PLACE.search(message)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1 if place else None
        complain = self._on_line(line)
        if message.startswith("Cannot") and all(pattern.search(text) for pattern in _BOTH_WORKLOADS):
            return complain(
                "TOML has no room for both `workload = ...` and [workload.NAME]; leave out the former: "
                "a single [workload.NAME] is chosen by itself, of several choose in [grid] workload = [...]"
            )
        if message.startswith("Cannot overwrite"):
            return complain("this key is there for the second time; keep one")
        if "integer string conversion" in message:
            return complain("a number has too many digits")
        what = clean(_PLACE.sub("", message), 200)
        column = f" (column {place[2]})" if place and place[2] else ""
        return complain(f"this is not TOML: {what[:1].lower()}{what[1:]}{column}")
