"""What trainoff itself costs: the same engine under trainoff and in a bare loop, as ratios.

    python benchmarks/overhead.py [--pairs 15] [--engine numpy] [--epochs 2]

A pair is one trial under the conductor (namespaces, events, snapshots, sampler) and one bare process that only trains,
with the same threads on the same CPU. The two run at the same time and in turns: every tenth of a second one is
stopped and the other goes on, so that both see the same machine, however it changes from second to second. Whole runs
one after the other differ by several per cent even when both are bare. Train time is the time a process was allowed to
run while it trained, without the pauses for snapshots; CPU seconds include the snapshots and the sampler.

Known weakness: bare against bare in the same turns gives 1.02 to 1.03, not 1 (docs/noise.md), so a verdict on a limit
of 1.02 needs pairs in which the two change places, and that control beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

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
TURN_S = 0.1

Span = tuple[float, float]


class BareWatch:
    """A watch that wants nothing and costs nothing."""

    should_stop = False

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None: ...

    def due(self) -> bool:
        return False

    def snapshot(self, samples_seen: int, weights: Any) -> None: ...

    def count(self, name: str, value: float) -> None: ...


def bare(trial_json: str) -> None:
    """Train once in this process; prints when it began and ended, and the CPU seconds between."""
    os.sched_setaffinity(0, cpus()[:1])  # the CPU that a trial of one core gets
    trial = study.Trial.from_json(json.loads(trial_json))
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(trial, Processes(1, Path(folder)), Path(folder))
        engine, watch = engines.get(trial.engine), BareWatch()
        engine.open(job, watch)
        start, cpu = time.monotonic(), time.process_time()
        engine.train(job, watch)
        print(json.dumps([start, time.monotonic(), time.process_time() - cpu]))


@dataclass
class Turns:
    """Lets two processes run in turns; knows when each of them was allowed to run."""

    names: Sequence[str] = ("trial", "bare")
    pids: dict[str, int] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=lambda: {"trial": [], "bare": []})

    def take(self, find_trial: Any) -> None:
        """Alternate from when both are there until one has ended; then the other goes on alone."""
        while "trial" not in self.pids:
            time.sleep(0.005)
            if found := find_trial():
                self.pids["trial"] = found
        self._signal("bare", signal.SIGSTOP)
        start, at = time.monotonic(), 0
        while all(psutil.pid_exists(pid) for pid in self.pids.values()):
            time.sleep(TURN_S)
            runs, waits = self.names[at % 2], self.names[(at + 1) % 2]
            self._signal(runs, signal.SIGSTOP)
            now = time.monotonic()
            self.spans[runs].append((start, now))
            self._signal(waits, signal.SIGCONT)
            start, at = now, at + 1
        for name in self.names:
            self._signal(name, signal.SIGCONT)
            self.spans[name].append((start, float("inf")))

    def _signal(self, name: str, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[name], number)

    def running(self, name: str, span: Span) -> float:
        """How long a process was allowed to run within a span."""
        return sum(max(0.0, min(end, span[1]) - max(begin, span[0])) for begin, end in self.spans[name])


def measure(planned: study.Study, folder: Path) -> tuple[float, float, float]:
    """One pair: the ratio of train times, the ratio of CPU seconds, the sampler's share of a core."""
    (trial,) = planned.trials()
    threads = {name: str(int(trial.cores)) for name in THREADS}
    words = [sys.executable, __file__, "--bare", json.dumps(trial.to_json())]
    turns, store = Turns(), Store(folder)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads}) as loop:
        turns.pids["bare"] = loop.pid
        slicer = threading.Thread(target=turns.take, args=(lambda: find_child(folder),))
        slicer.start()
        (task,) = Conductor(store, Silent()).run(prepare(planned, store)).tasks
        printed, _ = loop.communicate()
        slicer.join()
    begin, end, bare_cpu = json.loads(printed)
    record = task.record
    assert record is not None
    assert record.status == "ok", record.reason
    assert record.cold_s
    share: float = record.sampler["cpu_s"] / record.cold_s
    seconds, cpu = trained(next(folder.glob("*/events.jsonl")), turns)
    bare_seconds = turns.running("bare", (begin, end))
    return seconds / bare_seconds, (cpu + share * seconds) / bare_cpu, share


def trained(path: Path, turns: Turns) -> tuple[float, float]:
    """How long the trial trained, pauses left out, and the CPU seconds it took, pauses included."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    phases = [event for event in events if event["kind"] == "phase"]
    at = next(index for index, event in enumerate(phases) if event["name"] == "train")
    begin, end = phases[at], phases[at + 1]
    pauses = [(event["t"] - event["seconds"], event["t"]) for event in events if event["kind"] == "pause"]
    seconds = turns.running("trial", (begin["t"], end["t"])) - sum(turns.running("trial", pause) for pause in pauses)
    return seconds, end["process_cpu_s"] - begin["process_cpu_s"]


def find_child(folder: Path) -> int | None:
    """The trial process that works below a folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainoff.conduct.child" in words and str(folder) in words[-1]:
            return process.pid
    return None


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
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
        return 0
    data.get("mnist")
    columns: tuple[list[float], list[float], list[float]] = ([], [], [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overhead.toml"
        path.write_text(STUDY.format(engine=options.engine, epochs=options.epochs))
        planned = study.read(path, engines.facts())
        for pair in range(options.pairs):
            figures = measure(planned, Path(folder).resolve() / str(pair))
            for column, figure in zip(columns, figures, strict=True):
                column.append(figure)
            print(f"  pair {pair + 1}: time {figures[0]:.3f}, CPU {figures[1]:.3f}", file=sys.stderr)
    print(f"{options.engine}, {options.pairs} pairs, {options.epochs} epoch(s) of mnist-mlp each")
    good = [told(name, values) for name, values in zip(MOST, columns, strict=True)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
