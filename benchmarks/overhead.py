"""What trainoff itself costs: the same engine under trainoff and in a bare loop, as ratios.

    python benchmarks/overhead.py [--pairs 16] [--engine numpy] [--epochs 2]

A pair is one trial under the conductor (namespaces, events, snapshots, sampler) and one bare process that only trains,
with the same threads on the same CPU. The two run at the same time and in turns: every tenth of a second one is
stopped and the other goes on, so that both see the same machine, however it changes from second to second. Whole runs
one after the other differ by several per cent even when both are bare. From pair to pair the two change places: who is
started first, and who has the first turn. After each pair comes a control, the same with two bare processes; what its
median differs from 1 is what the method cannot see. Train time is the time a process was allowed to run while it
trained, without the pauses for snapshots; CPU seconds include the snapshots and the sampler.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainoff import data, engines, study
from trainoff.clusters import THREADS, Processes
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

    @property
    def pace(self) -> Any: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None: ...

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        return False

    def snapshot(self, samples_seen: int, weights: Any) -> None: ...

    def lost(self, who: str, redone: int = 0, ago_s: float = 0.0) -> None: ...

    def count(self, name: str, value: float) -> None: ...

    def task(self, worker: str, start_s: float, end_s: float) -> None: ...

    def page(self, name: str, host: str, port: int) -> None: ...

    def note(self, name: str, text: str) -> None: ...

    def breakdown(self, name: str, figures: Any) -> None: ...

    def objective(self, step: int, samples_seen: int, train_s: float, loss: float) -> None: ...


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

    pids: Sequence[int]
    spans: tuple[list[Span], list[Span]] = field(default_factory=lambda: ([], []))

    def take(self, first: int) -> None:
        """Alternate until one of the two has ended; then the other goes on alone."""
        runs = first
        self._signal(1 - runs, signal.SIGSTOP)
        start = time.monotonic()
        while all(alive(pid) for pid in self.pids):
            time.sleep(TURN_S)
            self._signal(runs, signal.SIGSTOP)
            now = time.monotonic()
            self.spans[runs].append((start, now))
            runs = 1 - runs
            self._signal(runs, signal.SIGCONT)
            start = now
        for side in (0, 1):
            self._signal(side, signal.SIGCONT)
            self.spans[side].append((start, float("inf")))

    def _signal(self, side: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[side], number)

    def running(self, side: int, span: Span) -> float:
        """How long a process was allowed to run within a span."""
        return sum(max(0.0, min(end, span[1]) - max(begin, span[0])) for begin, end in self.spans[side])


class Bare:
    """A process that only trains."""

    def __init__(self, planned: study.Study) -> None:
        (trial,) = planned.trials()
        threads = {name: str(int(trial.cores)) for name in THREADS}
        words = [sys.executable, __file__, "--bare", json.dumps(trial.to_json())]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads})
        self.pid = self.process.pid

    def figures(self, turns: Turns, side: int) -> tuple[float, float, float]:
        """Seconds of training, CPU seconds, and no sampler."""
        printed, _ = self.process.communicate()
        begin, end, cpu = json.loads(printed)
        return turns.running(side, (begin, end)), cpu, 0.0


class Conducted:
    """A trial as a user runs it."""

    def __init__(self, planned: study.Study, folder: Path) -> None:
        self.folder, store = folder, Store(folder)
        self.thread = threading.Thread(target=Conductor(store, Silent()).run, args=(prepare(planned, store),))
        self.thread.start()
        while (pid := find_child(folder)) is None:
            if not self.thread.is_alive():
                raise SystemExit("the trial ended before it began; `trainoff run` would say why")
            time.sleep(0.005)
        self.pid = pid

    def figures(self, turns: Turns, side: int) -> tuple[float, float, float]:
        """Seconds of training, CPU seconds with the sampler's, and the sampler's share of a core."""
        self.thread.join()
        (record,) = Store(self.folder).newest().values()
        assert record.status == "ok", record.reason
        assert record.cold_s
        share: float = record.sampler["cpu_s"] / record.cold_s
        seconds, cpu = trained(next(self.folder.glob("*/events.jsonl")), turns, side)
        return seconds, cpu + share * seconds, share


def measure(planned: study.Study, folder: Path | None, pair: int) -> tuple[float, float, float]:
    """One pair: the ratio of train times, the ratio of CPU seconds, the sampler's share of a core.

    The trial's folder, or None for the control of two bare processes.
    """

    def one() -> Bare | Conducted:
        return Conducted(planned, folder) if folder else Bare(planned)

    if pair % 2:
        other, this = Bare(planned), one()
    else:
        this, other = one(), Bare(planned)
    turns = Turns((this.pid, other.pid))
    turns.take(first=(pair // 2) % 2)
    seconds, cpu, share = this.figures(turns, 0)
    bare_seconds, bare_cpu, _ = other.figures(turns, 1)
    return seconds / bare_seconds, cpu / bare_cpu, share


def trained(path: Path, turns: Turns, side: int) -> tuple[float, float]:
    """How long the trial trained, pauses left out, and the CPU seconds it took, pauses included."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    phases = [event for event in events if event["kind"] == "phase"]
    at = next(index for index, event in enumerate(phases) if event["name"] == "train")
    begin, end = phases[at], phases[at + 1]
    pauses = [(event["t"] - event["seconds"], event["t"]) for event in events if event["kind"] == "pause"]
    seconds = turns.running(side, (begin["t"], end["t"])) - sum(turns.running(side, pause) for pause in pauses)
    return seconds, end["process_cpu_s"] - begin["process_cpu_s"]


def alive(pid: int) -> bool:
    """Whether a process has not ended yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def find_child(folder: Path) -> int | None:
    """The trial process that works below a folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainoff.conduct.child" in words and str(folder) in words[-1]:
            return process.pid
    return None


def told(name: str, values: Sequence[float], most: float | None = None) -> bool:
    """Print the median with its quartiles, and say whether it is as small as promised."""
    low, middle, high = statistics.quantiles(values, n=4)
    good = most is None or middle <= most
    verdict = "" if most is None else f", at most {most}: {'ok' if good else 'TOO MUCH'}"
    print(f"{name:<30} {middle:.4f}  (quartiles {low:.4f} to {high:.4f}{verdict})")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
        return 0
    data.get("mnist")
    rows, controls = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overhead.toml"
        path.write_text(STUDY.format(engine=options.engine, epochs=options.epochs))
        planned = study.read(path, engines.facts())
        for pair in range(options.pairs):
            rows.append(measure(planned, Path(folder).resolve() / str(pair), pair))
            controls.append(measure(planned, None, pair))
            shown = (f"time {time:.3f}, CPU {cpu:.3f}" for time, cpu, _ in (rows[-1], controls[-1]))
            print(f"  pair {pair + 1}: " + "; bare against bare ".join(shown), file=sys.stderr)
    print(f"{options.engine}, {options.pairs} pairs, {options.epochs} epoch(s) of mnist-mlp each")
    good = [told(name, column, MOST[name]) for name, column in zip(MOST, zip(*rows, strict=True), strict=True)]
    for name, column in zip(MOST, list(zip(*controls, strict=True))[:2], strict=False):
        told(f"control, {name}", column)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
