"""What a record's Parquet files hold, made small enough for a page: learning curves, and resources over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.errors import TrainoffError
from trainoff.records import Record, series_of

if TYPE_CHECKING:
    import numpy as np
    import polars

Row = dict[str, Any]
CURVE = {"samples_seen": "samples", "train_s": "train_s", "core_s": "core_s"}  # by their names on the page
MOST_ROLES = 12  # lines in one picture of resources


def short(value: float | None) -> float | None:
    """A figure with as many places as a picture can show; None for what is no number."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Shelf:
    """Where the series of records lie, and which of them turned out to be damaged: the page goes on without them."""

    folder: Path
    damaged: list[str] = field(default_factory=list)

    def read(self, record: Record, name: str) -> polars.DataFrame | None:
        """A series of a record, if it has one that can be read."""
        try:
            return series_of(self.folder, record, name)
        except TrainoffError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return None


def curve(record: Record, shelf: Shelf, most: int) -> list[Row]:
    """The learning curve of a record in at most so many points; empty where nothing was learnt."""
    frame = shelf.read(record, "curve")
    quality = None if frame is None else _quality(frame, record.metric)
    if frame is None or quality is None or not len(frame):
        return []
    columns = {name: frame[column].to_list() for column, name in CURVE.items() if column in frame.columns}
    columns["y"] = quality
    if record.network_bytes and record.isolation.get("own_network"):
        columns["bytes"] = _bytes_at(frame["wall_s"].to_list(), shelf.read(record, "samples"))
    known = [at for at, value in enumerate(quality) if value is not None]  # some systems tell more losses at their end
    kept = [known[place] for place in thinned(len(known), most)]
    return [{name: short(values[at]) for name, values in columns.items()} for at in kept]


def _quality(frame: polars.DataFrame, metric: str) -> list[float | None] | None:
    """The workload's metric along a curve."""
    if metric == "error" and "accuracy" in frame.columns:
        return (1 - frame["accuracy"]).to_list()
    column = {"log-loss": "loss"}.get(metric, metric)
    return frame[column].to_list() if column in frame.columns else None


def _bytes_at(wall_s: Sequence[float], samples: polars.DataFrame | None) -> list[float | None]:
    """The bytes that had crossed the network at some moments."""
    import numpy as np

    if samples is None or "network_bytes" not in samples.columns:
        return [None] * len(wall_s)
    machine = samples.filter(samples["role"] == "machine").drop_nulls("network_bytes")
    if not len(machine):
        return [None] * len(wall_s)
    return [float(found) for found in np.interp(wall_s, machine["t_s"].to_numpy(), machine["network_bytes"].to_numpy())]


def thinned(length: int, most: int) -> list[int]:
    """Evenly spread places in a list, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [round(at * (length - 1) / (most - 1)) for at in range(most)]


def resources(record: Record, shelf: Shelf, most: int) -> list[Row]:
    """Cores, memory and network of a record by role over time, at most so many points of each."""
    frame = shelf.read(record, "samples")
    if frame is None or not {"t_s", "role", "user_s", "system_s", "rss", "pss"} <= set(frame.columns):
        return []
    rows = []
    for (role,), own in frame.group_by("role", maintain_order=True):
        if role != "machine":
            rows.append(_role(str(role), own, most))
    busiest = sorted(rows, key=lambda own: -max((row["cores"] or 0 for row in own), default=0))
    return [row for own in busiest[:MOST_ROLES] for row in own]


def _role(role: str, own: polars.DataFrame, most: int) -> list[Row]:

    kept = own[thinned(len(own), most)]
    t, spent = kept["t_s"].to_numpy(), (kept["user_s"].fill_null(0) + kept["system_s"].fill_null(0)).to_numpy()
    memory = kept["pss"].fill_null(kept["rss"]).to_list()
    return [
        {
            "role": role,
            "t": short(t[at]),
            "cores": rate,
            "memory": short(memory[at] and memory[at] / 1e6),
            "sent": moved,
        }
        for at, (rate, moved) in enumerate(zip(_rates(t, spent), _rates(t, _traffic(kept)), strict=True))
    ]


def _traffic(kept: polars.DataFrame) -> np.ndarray[Any, Any]:
    import numpy as np

    names = [name for name in ("sent_bytes", "received_bytes") if name in kept.columns]
    if not names:
        return np.full(len(kept), np.nan)
    return sum((kept[name].cast(float).fill_null(0).to_numpy() for name in names), np.zeros(len(kept))) / 1e6


def _rates(t: np.ndarray[Any, Any], total: np.ndarray[Any, Any]) -> list[float | None]:
    """What was added per second between looks; a counter that fell, as where a process ended, adds nothing."""
    import numpy as np

    gaps = np.maximum(np.diff(t, prepend=t[0] - 1.0 if len(t) else 0.0), 1e-3)
    gained = np.maximum(np.diff(total, prepend=total[0] if len(total) else 0.0), 0.0)
    return [None if np.isnan(found) else short(float(found)) for found in gained / gaps]


def pack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns, and words as numbers of a list: a third of the size. The page unpacks them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"rows": len(rows), "columns": {name: _column([row.get(name) for row in rows]) for name in names}}


def _column(values: list[Any]) -> dict[str, Any]:
    if not any(isinstance(value, str) for value in values):
        return {"values": values}
    words = {word: at for at, word in enumerate(dict.fromkeys(values))}
    return {"words": list(words), "at": [words[value] for value in values]}
