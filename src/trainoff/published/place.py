"""Where records come from: a folder, or `published:NAME`. The one place that tells the two apart."""

from __future__ import annotations

from pathlib import Path

from trainoff.records import Damaged, Record, no_records, scan
from trainoff.reproductions.published import records

PREFIX = "published:"


def published_name(place: str | Path) -> str | None:
    """The NAME of `published:NAME`; None for a folder."""
    text = str(place)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def records_of(place: str | Path) -> tuple[list[Record], list[Damaged]]:
    """The records of a folder or of a published study, and those that are damaged."""
    name = published_name(place)
    return scan(Path(place)) if name is None else (records(name), [])


def some_of(place: str | Path) -> tuple[list[Record], list[Damaged]]:
    """The same where there must be some; a sentence with what to do if there are none."""
    found, damaged = records_of(place)
    if not found:
        raise no_records(Path(place), damaged)
    return found, damaged


def beside(place: Path, name: str) -> Path:
    """Where a file that is made of records goes: into their folder; for published ones here, under their name."""
    published = published_name(place)
    return place / name if published is None else Path(f"published-{published}-{name}")
