"""The cost of a round of training on Spark and on Dask: the same algorithm, cores and tau, turn by turn.

    python benchmarks/spark_vs_dask.py [--rounds 30] [--workers 4] [--tau 10]

Both clusters run at the same time, and rounds of three kinds alternate between them: empty tasks (the time is
scheduling), the weights transferred there and back (the difference is transfer), and tau steps of every worker (the
difference is computing). The network is mnist-mlp with 636,010 weights. On Dask a round of the first kind may take at
most 30 ms, one of the second at most 60 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainoff import data, engines, study
from trainoff.clusters import THREADS, Cluster
from trainoff.engines.shared.watch import Channel, TrialWatch
from trainoff.models import flatten
from trainoff.runner.job import make_job

ENGINES = ("spark-average", "dask-average")
MOST_MS = {"scheduling": 30.0, "with the weights": 60.0}


class Subject:
    """An engine on its cluster, ready to make rounds."""

    def __init__(self, name: str, workers: int, tau: int, folder: Path, stack: ExitStack) -> None:
        folder.mkdir()
        path = folder / "study.toml"
        path.write_text(f'workload = "mnist-mlp"\nengines = ["{name}"]\n')
        overrides = [f"workers={workers}", f"tau={tau}", "mode=local", "optimizer=sgd", "epochs=1000", "cores=1"]
        (trial,) = study.read(path, engines.facts(), overrides=overrides).trials()
        data.get("mnist")
        cluster = stack.enter_context(Cluster(workers, folder))
        job = make_job(trial, cluster, folder)
        (folder / "events").touch()
        watch = TrialWatch(Channel(folder / "events"), folder)
        watch.prepare(job.order, job.model.parameter_count, job.order.rows, None)
        engine: Any = engines.get(name)
        stack.callback(engine.close)
        engine.open(job, watch)
        self.name, self._pool, self._tau, self._step = name, engine.pool, tau, 1
        self._weights = flatten(job.weights)

    def round_ms(self) -> dict[str, float]:
        """Return the milliseconds of a round of each kind."""
        first, self._step = self._step, self._step + self._tau
        return {
            "scheduling": timed(self._pool.rest),
            "with the weights": timed(lambda: self._pool.round(self._weights, 1, 0)),
            "whole": timed(lambda: self._pool.round(self._weights, first, first + self._tau - 1)),
        }


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def median(kind: str, times: list[dict[str, float]]) -> float:
    return statistics.median(one[kind] for one in times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tau", type=int, default=10)
    options = parser.parse_args()
    os.environ.update(dict.fromkeys(THREADS, "1"))  # for the workers of both
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        both = [Subject(name, options.workers, options.tau, Path(folder) / name, stack) for name in ENGINES]
        for each in both:
            each.round_ms()
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
        for number in range(options.rounds):
            for each in both if number % 2 else reversed(both):
                found[each.name].append(each.round_ms())
    medians = {name: {kind: median(kind, times) for kind in times[0]} for name, times in found.items()}
    print(
        f"milliseconds of a round, {options.workers} workers of one core, tau {options.tau}, "
        f"medians of {options.rounds}"
    )
    print(f"{'':<14} {'scheduling':>10} {'transfer':>10} {'computing':>10} {'in all':>10}")
    for name, kinds in medians.items():
        empty, weights, whole = kinds.values()
        print(f"{name:<14} {empty:>10.1f} {weights - empty:>10.1f} {whole - weights:>10.1f} {whole:>10.1f}")
    spark, dask = (medians[name] for name in ENGINES)
    ratios = ", ".join(f"{kind} {spark[kind] / dask[kind]:.1f}" for kind in dask)
    print(f"Spark's time as a multiple of Dask's: {ratios}")
    good = all(dask[kind] <= most for kind, most in MOST_MS.items())
    wanted = ", ".join(f"{kind} at most {most:g} ms" for kind, most in MOST_MS.items())
    print(f"dask-average: {wanted} wanted: {'ok' if good else 'TOO SLOW'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
