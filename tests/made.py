"""Folders of records made for tests of what is shown: as many as wanted, with curves and samples on disk."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars

from recorded import record, store
from trainoff.records import Record

TARGETS = [0.95, 0.97]
PHASES = {"import": 0.5, "cluster_start": 1.0, "train": 4.0, "test": 0.1, "teardown": 0.2}


def made(engine: str, seed: int = 1, speed: float = 1.0, **more: Any) -> Record:
    """A record of a training that took four seconds at a speed of one."""
    base = {
        "study": "made",
        "engine": engine,
        "seed": seed,
        "repetition": seed,
        "targets": TARGETS,
        "time_to_target": {"0.95": 1.0 / speed, "0.97": 2.0 / speed},
        "test_accuracy": 0.98,
        "train_s": 4.0 / speed,
        "test_s": 0.1,
        "cold_s": 6.0 / speed,
        "cpu_s": 8.0 / speed,
        "cpu_s_by_role": {"driver": 1.0, "worker-0": 7.0},
        "peak_memory_bytes": 400_000_000,
        "phases_s": dict(PHASES),
        "samples_seen": 240_000,
        "samples_per_s": 60_000 * speed,
        "equivalence": {"verdict": "exact", "reason": None, "max_rel_diff": 1e-5, "steps": {"1": 1e-5}},
        "environment": {"cpu": "a CPU", "cpus": 2, "memory_bytes": 2**34, "python": "3.11.7"},
        "params": {"epochs": 4},
    }
    known = {key: value for key, value in {**base, **more}.items() if key != "trial_id"}
    name = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in engine)
    return record(more.get("trial_id", f"{name}-{seed}-{zlib.crc32(str(more).encode()):x}"), **known)


def curve(one: Record, points: int = 10) -> polars.DataFrame:
    """A curve that ends at the record's accuracy."""
    at = [(place + 1) / points for place in range(points)]
    best = one.test_accuracy or 0.5
    return polars.DataFrame(
        {
            "step": [round(100 * part) for part in at],
            "samples_seen": [round(240_000 * part) for part in at],
            "train_s": [(one.train_s or 1.0) * part for part in at],
            "wall_s": [1 + (one.train_s or 1.0) * part for part in at],
            "core_s": [2 * (one.train_s or 1.0) * part for part in at],
            "loss": [2 * math.exp(-4 * part) for part in at],
            "accuracy": [best * (1 - math.exp(-6 * part)) / (1 - math.exp(-6)) for part in at],
        }
    )


def samples(ticks: int = 20) -> polars.DataFrame:
    """What a driver and a worker used, and what crossed the network."""
    rows: list[dict[str, Any]] = []
    for tick in range(ticks):
        for role in ("driver", "worker-0"):
            used = {"user_s": 0.1 * tick, "system_s": 0.01 * tick, "rss": 10**8, "pss": 10**8, "network_bytes": None}
            rows.append({"t_s": 0.3 * tick, "role": role, **used, "sent_bytes": 1000 * tick, "received_bytes": 0})
        rows.append({"t_s": 0.3 * tick, "role": "machine", "network_bytes": 5000 * tick})
    return polars.DataFrame(rows, infer_schema_length=None)


def folder_of_made(folder: Path, records: Sequence[Record], points: int = 10, ticks: int = 20) -> Path:
    """A study's folder that holds these records, with curves and samples of those that trained."""

    def learnt(one: Record) -> polars.DataFrame | None:
        return curve(one, points) if one.train_s else None

    return store(folder, *records, curve=learnt, samples=samples(ticks) if ticks else None)


def many(count: int, repeats: int = 5) -> Iterator[Record]:
    """So many records: engines in ever other settings, each repeated."""
    engines = ["numpy", "torch", "tensorflow", "jax", "spark-average"]
    for number in range(count):
        setting, seed = divmod(number, repeats)
        engine, batch = engines[setting % len(engines)], 16 * (1 + setting // len(engines))
        speed = 1 + (number * 7919 % 100) / 100
        yield made(engine, seed + 1, speed, params={"epochs": 4, "batch_size": batch}, trial_id=f"{engine}-{number}")
