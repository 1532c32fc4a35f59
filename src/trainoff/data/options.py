"""Options behind a name or a path, as in `clicks:rows=1000000,bits=20`: whole numbers within a range."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainoff.errors import TrainoffError

_OPTIONS = re.compile(r"(.+?):([^/:]*=[^/:]*)")
_WHOLE = re.compile(r"\d[\d_]{0,17}")

Ranges = Mapping[str, tuple[int, int]]  # the least and the largest value of each option


def split(name: str) -> tuple[str, str]:
    """A name or path, and what stands behind its colon; nothing if that holds no `=`."""
    found = _OPTIONS.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def parse(name: str, text: str, ranges: Ranges) -> dict[str, int]:
    """The options in the text, checked; a mistake is answered with what is expected."""
    values: dict[str, int] = {}
    for item in text.split(",") if text else []:
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in ranges:
            raise TrainoffError(f"{name} has no option {key!r}; expected {_expected(ranges)}")
        low, high = ranges[key]
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise TrainoffError(f"{name}: {key} is {value!r}; expected a whole number from {low:,} to {high:,}")
        if key in values:
            raise TrainoffError(f"{name}: {key} is given twice")
        values[key] = int(value)
    return values


def _expected(ranges: Ranges) -> str:
    if not ranges:
        return "none, only the name"
    return f"{', '.join(ranges)}, as in {next(iter(ranges))}={next(iter(ranges.values()))[1]}"
