"""The training loss of a candidate over time, from the record it left."""

from __future__ import annotations

from pathlib import Path

from trainoff.records import Record, folder_of
from trainoff.tune.pruning import Curve


def losses(folder: Path, record: Record) -> Curve:
    """Seconds of training and the loss then, at every snapshot that has one; nothing where there is no curve."""
    import polars

    path = folder_of(folder, record) / "curve.parquet"
    if not path.exists():
        return []
    frame = polars.read_parquet(path)
    if not {"train_s", "objective"} <= set(frame.columns):
        return []
    known = frame.select("train_s", "objective").drop_nulls().sort("train_s")
    return [(float(when), float(loss)) for when, loss in known.iter_rows()]
