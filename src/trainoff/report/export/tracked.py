"""Records as trackers of experiments want them: under a name that a person understands, as settings and figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainoff.analysis import groups
from trainoff.analysis.format import told
from trainoff.records import Record, series_of

LONGEST = 120  # of a name; file systems take 255 bytes
FIGURES = (
    "test_accuracy",
    "train_s",
    "test_s",
    "cold_s",
    "pause_s",
    "samples_seen",
    "samples_per_s",
    "cpu_s",
    "peak_memory_bytes",
    "network_bytes",
    "disk_read_bytes",
    "disk_write_bytes",
    "context_switches",
    "cost_usd",
)
FACTS = ("engine", "engine_version", "workload", "mode", "workers", "cores", "memory_gb", "cluster", "seed")
VALUES = ("objective", "loss", "accuracy", "auc")


@dataclass(frozen=True)
class Tracked:
    """One record as a tracker's run."""

    record: Record
    name: str
    folder: Path

    @property
    def start(self) -> float:
        """When it began, in seconds since 1970; 0 for one that never did."""
        return datetime.fromisoformat(self.record.started_at).timestamp() if self.record.started_at else 0.0

    @property
    def end(self) -> float:
        return self.start + (self.record.cold_s or 0.0)

    def settings(self) -> dict[str, Any]:
        """What was tried: the engine, its mode, its machine, its parameters."""
        facts = {name: getattr(self.record, name) for name in FACTS}
        return {name: value for name, value in {**facts, **self.record.params}.items() if value is not None}

    def figures(self) -> dict[str, float]:
        """What came out: every figure that is known, by its name in the record."""
        one = self.record
        found = {name: getattr(one, name) for name in FIGURES}
        found |= {f"test_metrics/{name}": value for name, value in one.test_metrics.items()}
        found |= {f"time_to_target/{target}": value for target, value in one.time_to_target.items()}
        found |= {f"phases_s/{name}": value for name, value in one.phases_s.items()}
        return {name: float(value) for name, value in found.items() if value is not None}

    def points(self) -> Iterator[tuple[str, int, float, float]]:
        """The learning curve: what, after how many samples, at what time of day, and how much it was."""
        frame = series_of(self.folder, self.record, "curve")
        for row in frame.iter_rows(named=True) if frame is not None else ():
            since = row.get("wall_s") if row.get("wall_s") is not None else row.get("train_s")
            for name in VALUES:
                if row.get(name) is not None:
                    yield name, int(row["samples_seen"]), self.start + (since or 0.0), float(row[name])


def tracked(folder: Path, records: Sequence[Record]) -> list[Tracked]:
    """The records, each under a name of its own: engine, mode, workers, setting, seed."""
    several = len({record.study for record in records}) > 1
    made: dict[str, Tracked] = {}
    for group in groups(records):
        for record in group.records:
            study = f"{_plain(record.study)}/" if several else ""
            name = study + _name(record, group.label)
            if name in made:  # what tells them apart was cut off
                name = f"{name},{record.trial_id.rsplit('-', 1)[-1]}"
            made[name] = Tracked(record, name, folder)
    return list(made.values())


def _name(record: Record, label: dict[str, Any]) -> str:
    rest = [f"{key}={told(value)}" for key, value in label.items() if key != "workload"]
    workload = [record.workload] if "workload" in label else []
    parts = [record.engine, *workload, record.mode, f"workers={record.workers}", *rest]
    return _plain(",".join(parts))[:LONGEST] + f",seed={record.seed}"


def _plain(text: str) -> str:
    """Without what a file system or a tracker might take amiss."""
    return re.sub(r"[^\w.,=+-]+", "_", text).strip(".")
