"""How much faster the other engines on Spark reach 97 % than Spark's MLlib on the same cluster.

    python benchmarks/spark.py [--workers 2] [--minutes 10]

It runs trials of mnist-mlp on the engines on Spark. An engine that does not reach the target is censored: its time is
at least that of its training. The best must be at least 20 times as fast as MLlib. It also prints the bytes that a
round transfers, relative to the least possible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from trainoff import data, engines, study
from trainoff.records import Record, Store
from trainoff.runner.runner import Runner, RunObserver, prepare

TARGET = "0.97"
LEAST = 20.0
MOST_BYTES = 1.2
STUDY = """
name = "spark-bench"
workload = "mnist-mlp"
engines = ["spark-torch", "spark-average", "spark-sklearn", "spark-mllib"]
[params]
workers = {workers}
[engine.spark-mllib]
max_iter = 1000
[limits]
timeout_s = {seconds}
stall_s = 300
"""


def run(folder: Path, workers: int, minutes: float) -> dict[str, Record]:
    """Run one trial of each engine; return the records by engine."""
    path = folder / "study.toml"
    path.write_text(STUDY.format(workers=workers, seconds=minutes * 60 + 90))
    plan = study.read(path, engines.facts())
    for trial in plan.trials():
        data.get(trial.data)
    store = Store(folder / "records")
    done = Runner(store, RunObserver()).run(prepare(plan, store))
    return {task.trial.engine: task.record for task in done.tasks if task.record}


def to_target(record: Record) -> tuple[float, bool]:
    """Return the seconds of training to the target and True, or those that were not enough and False."""
    reached = record.time_to_target.get(TARGET)
    return (reached, True) if reached is not None else (record.train_s or 0.0, False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = run(Path(folder), options.workers, options.minutes)
    failed = False
    for name, record in sorted(records.items(), key=lambda item: to_target(item[1])):
        seconds, has_reached = to_target(record)
        how = (
            f"{seconds:6.1f} s to {TARGET}" if has_reached else f"more than {seconds:.0f} s (ended at {record.status})"
        )
        moved = record.counts.get("bytes_per_round", 0) / (record.counts.get("least_bytes_per_round") or 1)
        moved = moved if record.workers > 1 else 0.0  # a single worker transfers nothing
        failed |= moved > MOST_BYTES
        print(f"{name:15} {how}" + (f", a round moves {moved:.3f} times the least" if moved else ""))
    slow = records.pop("spark-mllib")
    reached = [seconds for seconds, has_reached in map(to_target, records.values()) if has_reached]
    if slow.status not in ("ok", "timeout") or not reached:
        print(f"nothing to compare: spark-mllib ended as {slow.status}, {len(reached)} others reached {TARGET}")
        return 1
    mllib, best = to_target(slow)[0], min(reached)
    failed |= mllib / best < LEAST
    print(f"the best is {mllib / best:.1f} times as fast as MLlib or more (at least {LEAST:g})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
