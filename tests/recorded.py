"""Records made by hand, in three lines: a folder of them with curves and samples, and no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import polars

from trainoff.records import Record, Store

CURVE = {
    "step": [1, 20, 40],
    "samples_seen": [10, 200, 400],
    "train_s": [0.1, 1.0, 2.0],
    "wall_s": [0.5, 1.5, 2.5],
    "core_s": [0.1, 1.1, 2.1],
    "loss": [2.0, 1.0, 0.5],
    "accuracy": [0.25, 0.5, 0.875],
}
SAMPLES = polars.DataFrame({"t_s": [0.2, 0.2], "role": ["driver", "machine"], "rss": [1000, None], "load": [None, 0.5]})


def record(trial_id: str = "numpy-1", **more: object) -> Record:
    """A record in which everything that can be left out is."""
    base = Record(
        trial_id, 1, "tiny", "numpy", "2.0", "digits-mlp", "single", 1, 1.0, None, "processes",
        {"epochs": 2}, 1, 1, 0, [0.9], {"timeout_s": 9.0, "stall_s": 9.0},
    )  # fmt: skip
    return dataclasses.replace(base, **more)


def trained(trial_id: str = "numpy-1", **more: object) -> Record:
    """The record of a training that ended well."""
    facts: dict[str, object] = {
        "started_at": "2026-01-02T03:04:05+00:00",
        "test_accuracy": 0.875,
        "train_s": 2.0,
        "cold_s": 3.0,
        "samples_seen": 400,
        "time_to_target": {"0.5": 1.0, "0.9": None},
        "phases_s": {"train": 2.0, "ship": None},
    }
    return record(trial_id, **{**facts, **more})


def store(
    folder: Path,
    *records: Record,
    curve: Callable[[Record], polars.DataFrame | None] = lambda _: polars.DataFrame(CURVE),
    samples: polars.DataFrame | None = SAMPLES,
) -> Path:
    """A study's folder that holds these records, each with a curve, samples and a log; returns the folder."""
    made = Store(folder)
    made.prepare()
    for one in records:
        with made.stage(one.trial_id) as staged:
            (staged / "log.txt").write_text(f"the log of {one.trial_id}\n")
            if (learnt := curve(one)) is not None:
                learnt.write_parquet(staged / "curve.parquet")
            if samples is not None:
                samples.write_parquet(staged / "samples.parquet")
            made.commit(one, staged)
    return folder
