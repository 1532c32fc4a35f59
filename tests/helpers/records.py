"""Records without a training, and folders of them with curves and samples."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars

from trainoff.analysis import groups
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


TARGETS = [0.95, 0.97]
PHASES = {"import": 0.5, "cluster_start": 1.0, "train": 4.0, "test": 0.1, "teardown": 0.2}
FAST = [1.0, 1.1, 0.9, 1.05, 1.0]  # seconds of five repetitions


def record(trial_id: str = "numpy-1", **more: object) -> Record:
    """Return a record without any optional field."""
    base = Record(
        trial_id, 1, "tiny", "numpy", "2.0", "digits-mlp", "single", 1, 1.0, None, "processes",
        {"epochs": 2}, 1, 1, 0, [0.9], {"timeout_s": 9.0, "stall_s": 9.0},
    )  # fmt: skip
    return dataclasses.replace(base, **more)


def trained(trial_id: str = "numpy-1", **more: object) -> Record:
    """Return the record of a training that ended well."""
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
    """Store records in a study's folder, each with a curve, samples and a log; return the folder."""
    written = Store(folder)
    written.prepare()
    for one in records:
        with written.stage(one.trial_id) as staged:
            (staged / "log.txt").write_text(f"the log of {one.trial_id}\n")
            if (points := curve(one)) is not None:
                points.write_parquet(staged / "curve.parquet")
            if samples is not None:
                samples.write_parquet(staged / "samples.parquet")
            written.commit(one, staged)
    return folder


def commit(store: Store, one: Record) -> Path:
    """Store a record with a log; return its folder."""
    with store.stage(one.trial_id) as folder:
        (folder / "log.txt").write_text("hello\n")
        return store.commit(one, folder)


def make_record(engine: str, seed: int = 1, speed: float = 1.0, **more: Any) -> Record:
    """Return the record of a training that took four seconds at a speed of one."""
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
    """Return a curve that ends at the record's accuracy."""
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
    """Return samples of a driver, a worker and the machine's network."""
    rows: list[dict[str, Any]] = []
    for tick in range(ticks):
        for role in ("driver", "worker-0"):
            used = {"user_s": 0.1 * tick, "system_s": 0.01 * tick, "rss": 10**8, "pss": 10**8, "network_bytes": None}
            rows.append({"t_s": 0.3 * tick, "role": role, **used, "sent_bytes": 1000 * tick, "received_bytes": 0})
        rows.append({"t_s": 0.3 * tick, "role": "machine", "network_bytes": 5000 * tick})
    return polars.DataFrame(rows, infer_schema_length=None)


def write_study_folder(folder: Path, records: Sequence[Record], points: int = 10, ticks: int = 20) -> Path:
    """Store records in a study's folder, with curves and samples of those that trained; return the folder."""

    def curve_of(one: Record) -> polars.DataFrame | None:
        return curve(one, points) if one.train_s else None

    return store(folder, *records, curve=curve_of, samples=samples(ticks) if ticks else None)


def many_records(count: int, repeats: int = 5) -> Iterator[Record]:
    """Yield `count` records of five engines, in ever other settings, each repeated."""
    engines = ["numpy", "torch", "tensorflow", "jax", "spark-average"]
    for number in range(count):
        setting, seed = divmod(number, repeats)
        engine, batch = engines[setting % len(engines)], 16 * (1 + setting // len(engines))
        speed = 1 + (number * 7919 % 100) / 100
        yield make_record(
            engine, seed + 1, speed, params={"epochs": 4, "batch_size": batch}, trial_id=f"{engine}-{number}"
        )


def timed_record(engine: str, seconds_to: float | None, seed: int = 1, **more):
    """Return the record of a run that reached 97 % after these seconds, or never."""
    base = {
        "engine": engine,
        "seed": seed,
        "targets": [0.95, 0.97],
        "time_to_target": {"0.95": 1.0, "0.97": seconds_to},
        "test_accuracy": 0.98,
        "train_s": 9.0,
        "equivalence": {"verdict": "exact", "reason": None},
    }
    return record(f"{engine}-{seed}", **{**base, **more})


def timed_groups(**times):
    """Return groups of five repetitions of each engine, with these times to 97 %."""
    return groups(
        [
            timed_record(engine, time, seed, repetition=seed)
            for engine, own in times.items()
            for seed, time in enumerate(own, 1)
        ]
    )


def distributed_record(engine: str, mode: str, *, computing: float, communicating: float, cpu: float = 0.5, **more):
    """Return the record of a training of ten seconds by two workers that behaved alike."""
    spent = {"computing_s": computing, "communicating_s": communicating, "waiting_s": 10 - computing - communicating}
    return timed_record(
        engine,
        5.0,
        mode=mode,
        workers=2,
        train_s=10.0,
        breakdowns={
            **{name: {"worker-0": value, "worker-1": value} for name, value in spent.items()},
            **more.pop("breakdowns", {}),
        },
        training={"cpu_share": cpu, "network_bytes_per_s": 2e8},
        **more,
    )


KILL = {"action": "kill-process", "node": -1, "at": 0.3}
SLOW = {"action": "slow", "node": -1, "at": 0.3, "share": 0.25, "for_s": None}
PAUSE = {"action": "pause", "node": -1, "at": "2 s", "for_s": 1.0}


def faulted_record(engine, asked, seed=1, speed=0.5, accuracy=0.98, status="ok", **figures):
    """Return the record of a training with a fault."""
    came = {"at_s": 1.0, "step": 10, "processes": 1, "healed_s": None, "detected_s": None, "recovered_s": None,
            "longest_gap_s": 0.5, "samples_redone": 0, "why": None, "state": "unharmed", **figures}  # fmt: skip
    of_it = {"params": {"epochs": 4, "fault": asked}, "fault": {**asked, "node": 1, **came}}
    return make_record(engine, seed, speed, mode="sync", workers=2, status=status, test_accuracy=accuracy, **of_it)


def undisturbed_record(engine, seed=1, accuracy=0.98):
    """Return the record of the same training without a fault."""
    return make_record(engine, seed, mode="sync", workers=2, test_accuracy=accuracy)


BACK = {"detected_s": 0.25, "recovered_s": 6.0, "longest_gap_s": 5.5, "samples_redone": 2300, "state": "recovered"}
LOST = {"detected_s": 2.0, "longest_gap_s": 2.0, "state": "failed"}
FAULT_RECORDS = [
    undisturbed_record("torch-ddp"),
    faulted_record("torch-ddp", KILL, accuracy=0.97, **BACK),
    faulted_record("torch-ddp", PAUSE, speed=0.8, healed_s=1.0),
    undisturbed_record("spark-torch"),
    faulted_record("spark-torch", KILL, status="crashed", **LOST),
    faulted_record("dask-average", SLOW, speed=0.4),
]
