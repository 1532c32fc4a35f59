"""CSV and Parquet: a table of the records, one of the learning curves and one of the resource samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.data import Progress
from trainoff.records import Record, curves, samples, table
from trainoff.report.export.place import Place

if TYPE_CHECKING:
    import polars


def write(place: Place, folder: Path, records: Sequence[Record], say: Progress) -> list[str]:
    """Write the three tables; returns what to tell of them."""
    to = place.to
    made = {
        "records": table(records),
        "curves": curves(folder, records, say),
        "samples": samples(folder, records, say),
    }
    for name, frame in made.items():
        with place.file(f"{name}.{to}") as path:
            _write(frame, path, to)
    sizes = [f"{name}.{to} ({frame.height:,} x {frame.width})" for name, frame in made.items()]
    return [f": {', '.join(sizes)}"]


def _write(frame: polars.DataFrame, path: Path, to: str) -> None:
    if to == "csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
