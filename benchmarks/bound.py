"""How close training comes to the machine's limit: time to 97 % on mnist-mlp against its matrix products alone.

    python benchmarks/bound.py [--cores 1] [--repeat 3]

It runs trials of every engine that has the perceptron, and before and after each measures how fast this machine
multiplies large float32 matrices on the same cores, with the faster of the installed libraries. The bound is the time
that the matrix products of the epochs which the engine needed take at that speed. The best engine must stay within 1.5
times its bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from trainoff import data, engines, study
from trainoff.clusters import THREADS
from trainoff.clusters.local import cpus
from trainoff.models import DenseLayer, Mlp
from trainoff.records import Record, Store, folder_of
from trainoff.runner.runner import Runner, RunObserver, prepare

TARGET = "0.97"
MOST = 1.5
SIZE = 1024
PRODUCT = {
    "numpy": "import numpy as n; a = n.random.rand({size}, {size}).astype('f4'); f = lambda: a @ a",
    "torch": "import torch; torch.set_num_threads({threads}); a = torch.rand({size}, {size}); f = lambda: a @ a",
}
TIMED = "import timeit; f(); print(min(timeit.repeat(f, number=5, repeat=20)) / 5)"


def speed(cores: float) -> float:
    """Return the operations per second of the fastest matrix product."""
    count = ceil(cores)
    environment = {**os.environ, **{name: str(count) for name in THREADS}}
    found = []
    for module, code in PRODUCT.items():
        if find_spec(module):
            pinned = f"import os; os.sched_setaffinity(0, {cpus()[:count]}); "
            script = pinned + code.format(size=SIZE, threads=count) + "; " + TIMED
            done = subprocess.run([sys.executable, "-c", script], env=environment, stdout=-1, text=True, check=True)
            found.append(2 * SIZE**3 / float(done.stdout))
    return max(found)


def operations(model: Mlp) -> int:
    """Return the operations of one row's matrix products: forward, gradients by weights and by hidden layers."""
    layers = [layer for layer in model.layers if isinstance(layer, DenseLayer)]
    return sum(2 * layer.products * (2 if index == 0 else 3) for index, layer in enumerate(layers))


def samples_at_target(folder: Path, record: Record) -> int:
    """Return how many samples the engine had seen when it reached the target."""
    import polars

    curve = polars.read_parquet(folder_of(folder, record) / "curve.parquet")
    reached = curve.filter(polars.col("train_s") == record.time_to_target[TARGET])
    return int(reached["samples_seen"][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cores", type=float, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    data.get("mnist")
    available = [
        name for name in engines.names() if not engines.get(name).missing() and engines.get(name).modes[0] == "single"
    ]
    model = Mlp((784, 800, 10))
    ratios: dict[str, list[float]] = {name: [] for name in available}
    with tempfile.TemporaryDirectory() as place:
        folder, path = Path(place).resolve(), Path(place) / "bound.toml"
        path.write_text(f'workload = "mnist-mlp"\nengines = {available}\nrepeat = {options.repeat}\n')
        planned = study.read(path, engines.facts(), overrides=[f"cores={options.cores}"])
        store = Store(folder)
        for task in prepare(planned, store):
            before = speed(options.cores)
            Runner(store, RunObserver()).run([task])
            peak = (before + speed(options.cores)) / 2
            record = task.record
            if record is None or record.status != "ok" or record.time_to_target[TARGET] is None:
                print(f"{task.trial.engine}: {record.reason if record else 'no record'}", file=sys.stderr)
                continue
            time, seen = record.time_to_target[TARGET] or 0.0, samples_at_target(folder, record)
            ratios[task.trial.engine].append(time / (seen * operations(model) / peak))
            print(f"  {record.engine}: {time:.2f} s, {seen:,} samples, {peak / 1e9:.0f} GFLOP/s", file=sys.stderr)
    print(f"time to 97 % on mnist-mlp / the same at the speed of matrix products, {options.cores:g} core(s), medians")
    medians = {name: statistics.median(values) for name, values in ratios.items() if values}
    for name, ratio in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:<12} {ratio:.2f}")
    good = min(medians.values(), default=float("inf")) <= MOST
    print(f"the best must be at most {MOST}: {'ok' if good else 'TOO SLOW'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
