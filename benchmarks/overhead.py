"""What trainoff itself costs: the same engine under trainoff and in a bare loop, in turn, as ratios.

    python benchmarks/overhead.py [--pairs 15] [--engine numpy] [--epochs 1]

A pair is one trial under the conductor (namespaces, events, snapshots, sampler) and one bare process that only
trains, with the same threads on the same CPU, in random order. Absolute times on a shared machine lie; the median
ratio of pairs does not. CPU seconds under trainoff are those of the training process plus all of the sampler's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainoff import data, engines, study
from trainoff.clusters import Processes
from trainoff.conduct.child import THREADS
from trainoff.conduct.conductor import Conductor
from trainoff.conduct.job import make_job
from trainoff.conduct.machine import cpus
from trainoff.conduct.task import prepare
from trainoff.conduct.view import Silent
from trainoff.records import Store

STUDY = 'name = "overhead"\nworkload = "mnist-mlp"\nengines = ["{engine}"]\n[params]\nepochs = {epochs}\n'
MOST = {"train time": 1.02, "CPU seconds": 1.02, "sampler, share of a core": 0.01}


class BareWatch:
    """A watch that wants nothing and costs nothing."""

    should_stop = False

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None: ...

    def due(self) -> bool:
        return False


def bare(trial_json: str) -> None:
    """Train once in this process and print the seconds, of the clock and of the CPU."""
    os.sched_setaffinity(0, cpus()[:1])  # the CPU that a trial of one core gets
    trial = study.Trial.from_json(json.loads(trial_json))
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(trial, Processes(1, Path(folder)), Path(folder))
        engine, watch = engines.get(trial.engine), BareWatch()
        engine.open(job, _WithPhases())
        start, cpu = time.monotonic(), time.process_time()
        engine.train(job, watch)  # type: ignore[arg-type]  # the parts of a watch that training uses
        print(json.dumps([time.monotonic() - start, time.process_time() - cpu]))


class _WithPhases:
    """Enough of a watch for `open`."""

    def phase(self, name: str) -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def measure_bare(trial: study.Trial) -> tuple[float, float]:
    words = [sys.executable, __file__, "--bare", json.dumps(trial.to_json())]
    threads = {name: str(int(trial.cores)) for name in THREADS}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **threads})
    seconds, cpu = json.loads(done.stdout)
    return seconds, cpu


def measure_trainoff(planned: study.Study, folder: Path) -> tuple[float, float, float]:
    """Train time, CPU seconds (training process and sampler), and the sampler's share of a core."""
    store = Store(folder)
    (task,) = Conductor(store, Silent()).run(prepare(planned, store)).tasks
    record = task.record
    assert record is not None
    assert record.status == "ok", record.reason
    assert record.train_s
    assert record.cold_s
    (events,) = folder.glob("*/events.jsonl")
    sampler: float = record.sampler["cpu_s"]
    return record.train_s, _train_cpu(events) + sampler, sampler / record.cold_s


def _train_cpu(events: Path) -> float:
    phases = [event for line in events.read_text().splitlines() if (event := json.loads(line))["kind"] == "phase"]
    at = next(index for index, event in enumerate(phases) if event["name"] == "train")
    spent: float = phases[at + 1]["process_cpu_s"] - phases[at]["process_cpu_s"]
    return spent


def told(name: str, values: Sequence[float]) -> bool:
    """Print the median with its quartiles, and say whether it is as small as promised."""
    low, middle, high = statistics.quantiles(values, n=4)
    good = middle <= MOST[name]
    verdict = "ok" if good else "TOO MUCH"
    print(f"{name:<26} {middle:.4f}  (quartiles {low:.4f} to {high:.4f}, at most {MOST[name]}: {verdict})")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
        return 0
    data.get("mnist")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overhead.toml"
        path.write_text(STUDY.format(engine=options.engine, epochs=options.epochs))
        planned = study.read(path, engines.facts())
        times, cpus_used, shares = measure_pairs(planned, options.pairs, Path(folder))
    print(f"{options.engine}, {options.pairs} pairs, {options.epochs} epoch(s) of mnist-mlp each")
    good = [told(name, values) for name, values in zip(MOST, (times, cpus_used, shares), strict=True)]
    return 0 if all(good) else 1


def measure_pairs(planned: study.Study, pairs: int, folder: Path) -> tuple[list[float], list[float], list[float]]:
    (trial,) = planned.trials()
    times, cpus_used, shares = [], [], []
    for pair in range(pairs):
        first_bare = random.random() < 0.5
        loop = measure_bare(trial) if first_bare else None
        seconds, cpu, share = measure_trainoff(planned, folder / str(pair))
        loop = loop or measure_bare(trial)
        times.append(seconds / loop[0])
        cpus_used.append(cpu / loop[1])
        shares.append(share)
        print(f"  pair {pair + 1}: time {times[-1]:.3f}, CPU {cpus_used[-1]:.3f}", file=sys.stderr)
    return times, cpus_used, shares


if __name__ == "__main__":
    sys.exit(main())
