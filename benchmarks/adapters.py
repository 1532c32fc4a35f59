"""The cost of an adapter: samples per second through trainoff's engine against a bare script of the same framework.

    python benchmarks/adapters.py [--processes 3] [--rounds 7] [--engine torch]... [--cores 1]

The scripts in benchmarks/bare/ contain only the framework, the model and a loop. Both train the same model on the same
rows in the same batches with the same threads, in one process, in turns of a few tenths of a second, and change the
order from round to round. Where the weights lie in memory can make a difference of several per cent that lasts as long
as the process. So there are several processes, and the figure is the median over them of the median over the rounds of
the ratio of speeds: 1 means that the adapter costs nothing, and it must be at least 0.95. The adapter reports to a real
watch, as in a trial, but takes no snapshots, whose time a trial does not count either.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, cast

from trainoff.clusters import THREADS
from trainoff.clusters.local import cpus
from trainoff.runner.supervisor import KEEP_MEMORY

LEAST = 0.95
BATCHES = (128, 1000)
ENGINES = {
    "numpy": ("mlp",),
    "sklearn": ("mlp",),
    "tensorflow": ("mlp", "cnn"),
    "torch": ("mlp", "cnn"),
    "jax": ("mlp", "cnn"),
}
SECONDS = 0.4  # about how long one turn lasts

Turn = Callable[[], object]


def make_turns(name: str, kind: str, batch: int, cores: float, folder: Path) -> tuple[Turn, Turn]:
    """Return the adapter's turn and the bare script's, on the same job."""
    from trainoff import data, engines, study
    from trainoff.clusters import Cluster
    from trainoff.engines.shared.watch import Channel, TrialWatch
    from trainoff.runner.job import make_job

    class Watch(TrialWatch):
        def due(self, settle: Callable[[], object] | None = None) -> bool:
            return False

    path = folder / "adapters.toml"
    path.write_text(f'workload = "mnist-{kind}"\nengines = ["{name}"]\n')
    overrides = [f"batch_size={batch}", "epochs=1", "train_rows=20000", "schedule=constant", "learning_rate=0.01"]
    (trial,) = study.read(path, engines.facts(), overrides=[*overrides, f"cores={cores}"]).trials()
    data.get("mnist")
    job = make_job(trial, cast(Cluster, None), folder)
    (folder / "events").touch()
    watch = Watch(Channel(folder / "events"), folder)
    watch.prepare(job.order, job.model.parameter_count, job.order.rows, None)
    engine = engines.get(name)
    engine.open(job, watch)
    bare: Any = importlib.import_module(f"bare.{name}_loop")
    loop = bare.make(job.model, job.weights, job.data.x_train, job.data.y_train, batch, ceil(cores))
    rows = fitting_rows(lambda part: loop(part.order.epoch(0)), job, batch)
    part = replace(job, order=replace(job.order, rows=rows))
    return lambda: engine.train(part, watch), lambda: loop(part.order.epoch(0))


def fitting_rows(run: Callable[[Any], object], job: Any, batch: int) -> int:
    """Return how many rows, in whole batches, keep the bare loop busy for one turn."""
    few = replace(job, order=replace(job.order, rows=batch * 4))
    run(few)
    start = time.perf_counter()
    run(few)
    batches = max(4, int(SECONDS / (time.perf_counter() - start) * 4))
    return int(min(batches * batch, job.order.rows // batch * batch))


def timed(turn: Turn) -> float:
    start = time.perf_counter()
    turn()
    return time.perf_counter() - start


def compare(name: str, kind: str, batch: int, cores: float, rounds: int) -> float:
    """Return the median ratio of speeds, adapter to bare script."""
    with tempfile.TemporaryDirectory() as folder:
        adapter, bare = make_turns(name, kind, batch, cores, Path(folder))
        timed(adapter), timed(bare)
        ratios = []
        for round_ in range(rounds):
            first, second = (adapter, bare) if round_ % 2 else (bare, adapter)
            times = {first: timed(first), second: timed(second)}
            ratios.append(times[bare] / times[adapter])
        return statistics.median(ratios)


def in_own_process(name: str, kind: str, batch: int, cores: float, rounds: int) -> float:
    """Compare in a new process, pinned and with the allocator's settings of a trial."""
    argv = [sys.executable, __file__, "--one", f"{name},{kind},{batch}", "--cores", str(cores), "--rounds", str(rounds)]
    environment = {**KEEP_MEMORY, **os.environ, **{variable: str(ceil(cores)) for variable in THREADS}}
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", action="append", choices=list(ENGINES))
    parser.add_argument("--cores", type=float, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, kind, batch = options.one.split(",")
        os.sched_setaffinity(0, cpus()[: ceil(options.cores)])
        print(compare(name, kind, int(batch), options.cores, options.rounds))
        return 0
    print(
        f"speed of the adapter / speed of the bare script, {options.cores:g} core(s), "
        f"medians over {options.processes} processes of {options.rounds} rounds"
    )
    worst = 1.0
    for name in options.engine or ENGINES:
        for kind in ENGINES[name]:
            for batch in BATCHES:
                ratios = [
                    in_own_process(name, kind, batch, options.cores, options.rounds) for _ in range(options.processes)
                ]
                ratio = statistics.median(ratios)
                worst = min(worst, ratio)
                verdict = "ok" if ratio >= LEAST else "TOO SLOW"
                sorted_ratios = ", ".join(f"{one:.3f}" for one in sorted(ratios))
                print(
                    f"{name:<12} {kind:<4} batch {batch:<6,} {ratio:.3f}  {verdict} (processes: {sorted_ratios})",
                    flush=True,
                )
    return 0 if worst >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
