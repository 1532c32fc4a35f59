"""Printed figures as numbers: times, shares, and whatever has a letter or a sign beside it."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(?P<minutes>[\d.]+) ?min)? ?(?:(?P<seconds>[\d.]+) ?s?)?")
_NUMBER = re.compile(r"\$?(?P<number>[\d.]+)(?: ?[%M])?")


def seconds(printed: str) -> float:
    """A time: `332.476`, `128s`, `9.45 s`, `4min 25s`, `1 min 32 s`."""
    found = _TIME.fullmatch(printed)
    if not found or not printed:
        raise ValueError(f"`{printed}` is not a time")
    return 60 * float(found["minutes"] or 0) + float(found["seconds"] or 0)


def number(printed: str) -> float | int:
    """A number without its sign or unit: `$0.27`, `140M`, `10000`."""
    found = _NUMBER.fullmatch(printed)
    if not found:
        raise ValueError(f"`{printed}` is not a number")
    return float(found["number"]) if "." in found["number"] else int(found["number"])


def share(printed: str) -> float:
    """Per cent as a share: `91.64%` is 0.9164, to the last digit that is printed."""
    if not printed.endswith("%"):
        raise ValueError(f"`{printed}` is not per cent")
    return round(number(printed) / 100, 6)
