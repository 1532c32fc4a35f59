"""What trainoff itself costs: the same engine under trainoff and in a bare loop, as ratios.

    python benchmarks/overhead.py [--pairs 16] [--engine numpy] [--epochs 2]

How it measures. A pair is one trial under the runner (namespaces, events, snapshots, sampler) and one bare process
that only trains, with the same threads, the same settings of malloc and the same CPU. Each is started alone and stopped
as soon as it trains; once both are there they train in turns of about a tenth of a second, one stopped while the other
goes on, so that both see the same machine, however it changes from second to second. The turns differ in length by
chance: otherwise what comes once a second, as the sampler does, would always meet the same one. Who has trained waits,
stopped, until the other has too: nothing of ours but the runner and the supervisor runs beside a training. From pair to
pair the two change places: who is started first and has the first turn. After each pair comes a control, the same with
two bare processes. Train time is the time a process was allowed to run while it trained, without the pauses for
snapshots; CPU seconds include the snapshots and the sampler.

How it judges. First whether it can: the median of the controls must be 1 within SEES, with an interval (95 %) that is
no wider than SEES to either side, and the medians of the two orders must agree within SEES, among the trials and among
the controls. Then the interval of the trials' median must lie at or below what is allowed ("ok") or above it ("TOO
MUCH"). Whatever fails is printed as "cannot decide", with the reason. Exit code: 1 if anything is too much, otherwise
2 if anything cannot be decided, otherwise 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from trainoff import data, engines, study
from trainoff.analysis.statistics import FEWEST, interval
from trainoff.clusters import THREADS, Cluster
from trainoff.clusters.local import cpus, die_with_parent
from trainoff.records import Store
from trainoff.runner.job import make_job
from trainoff.runner.runner import NullObserver, Runner, prepare
from trainoff.runner.supervisor import KEEP_MEMORY

STUDY = 'name = "overhead"\nworkload = "mnist-mlp"\nengines = ["{engine}"]\n[params]\nepochs = {epochs}\n'
MOST = {"train time": 1.02, "CPU seconds": 1.02, "sampler, share of a core": 0.01}
SEES = 0.01  # what the method must be able to see
TURN_S = 0.1
LOOK_S = 0.001  # between two looks at whether a trial trains yet
OK, TOO_MUCH, CANNOT_DECIDE = 0, 1, 2  # exit codes, too

Span = tuple[float, float]


class BareWatch:
    """A watch that wants nothing and costs nothing."""

    should_stop = False

    @property
    def snapshot_schedule(self) -> Any: ...

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
    """Train once in this process; prints when it began, and then when it ended and the CPU seconds between."""
    die_with_parent()
    os.sched_setaffinity(0, cpus()[:1])  # the CPU that a trial of one core gets
    trial = study.Trial.from_json(json.loads(trial_json))
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(trial, Cluster(1, Path(folder)), Path(folder))
        engine, watch = engines.get(trial.engine), BareWatch()
        engine.open(job, watch)
        start, cpu = time.monotonic(), time.process_time()
        print(start, flush=True)
        engine.train(job, watch)
        print(json.dumps([time.monotonic(), time.process_time() - cpu]), flush=True)


class Bare:
    """A process that only trains; made when it has begun to."""

    def __init__(self, planned: study.Study) -> None:
        (trial,) = planned.trials()
        threads = {name: str(int(trial.cores)) for name in THREADS}
        words = [sys.executable, __file__, "--bare", json.dumps(trial.to_json())]
        environment = {**KEEP_MEMORY, **os.environ, **threads}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout
        self.pid, self.printed = self.process.pid, self.process.stdout
        self.begin = float(self.printed.readline())

    def done(self) -> bool:
        """Whether it has trained."""
        return self.process.poll() is not None

    def figures(self, running: Callable[[Span], float]) -> tuple[float, float, float]:
        """Seconds of training, CPU seconds, and no sampler."""
        end, cpu = json.loads(self.printed.read())
        self.process.wait()
        return running((self.begin, end)), cpu, 0.0


class Conducted:
    """A trial as a user runs it; made when it has begun to train."""

    def __init__(self, planned: study.Study, folder: Path) -> None:
        self.folder, store = folder, Store(folder)
        self.thread = threading.Thread(target=Runner(store, NullObserver()).run, args=(prepare(planned, store),))
        self.thread.start()
        while (found := find_child(folder)) is None:
            self._wait(0.05)
        self.pid, stage = found
        self.events = stage / "events.jsonl"
        while not self._entered("train"):
            self._wait(LOOK_S)

    def done(self) -> bool:
        """Whether it has trained, or can no longer."""
        return self._entered("test") or self._entered("teardown") or not self.events.exists()

    def figures(self, running: Callable[[Span], float]) -> tuple[float, float, float]:
        """Seconds of training, CPU seconds with the sampler's, and the sampler's share of a core."""
        self.thread.join()
        (record,) = Store(self.folder).newest().values()
        assert record.status == "ok", record.reason
        assert record.cold_s
        share: float = record.sampler["cpu_s"] / record.cold_s
        seconds, cpu = trained(next(self.folder.glob("*/events.jsonl")), running)
        return seconds, cpu * (1 + share), share  # of the CPU seconds: waiting for others is no cost of trainoff's

    def _entered(self, phase: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return f'"kind": "phase", "name": "{phase}"' in self.events.read_text()
        return False

    def _wait(self, seconds: float) -> None:
        if not self.thread.is_alive():
            raise SystemExit("the trial ended before it trained; `trainoff run` would say why")
        time.sleep(seconds)


@dataclass
class Turns:
    """Lets two processes train in turns; knows when each of them was allowed to run."""

    runs: dict[int, Bare | Conducted] = field(default_factory=dict)
    spans: dict[int, list[Span]] = field(default_factory=dict)

    def add(self, side: int, run: Bare | Conducted) -> None:
        """Stop a process that has just begun to train; until now it ran freely."""
        self._signal(run, signal.SIGSTOP)
        self.runs[side], self.spans[side] = run, [(float("-inf"), time.monotonic())]
        if run.done():
            raise SystemExit("it had trained before it could be stopped; take more --epochs")

    def take(self) -> None:
        """Alternate until both have trained; who was added first begins."""
        while not all(run.done() for run in self.runs.values()):
            for side, run in self.runs.items():
                if not run.done():
                    start = time.monotonic()
                    self._signal(run, signal.SIGCONT)
                    time.sleep(TURN_S * random.uniform(0.5, 1.5))
                    self._signal(run, signal.SIGSTOP)
                    self.spans[side].append((start, time.monotonic()))

    def release(self) -> None:
        """Let both go on to their ends."""
        for run in self.runs.values():
            self._signal(run, signal.SIGCONT)

    @staticmethod
    def _signal(run: Bare | Conducted, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, number)

    def running(self, side: int, span: Span) -> float:
        """How long a process was allowed to run within a span."""
        return sum(max(0.0, min(end, span[1]) - max(begin, span[0])) for begin, end in self.spans[side])


def measure(planned: study.Study, folder: Path | None, pair: int) -> tuple[float, float, float]:
    """One pair: the ratio of train times, the ratio of CPU seconds, the sampler's share of a core.

    The trial's folder, or None for the control of two bare processes.
    """
    turns = Turns()
    try:
        for side in (1, 0) if pair % 2 else (0, 1):
            turns.add(side, Conducted(planned, folder) if folder and side == 0 else Bare(planned))
        turns.take()
    finally:
        turns.release()
    seconds, cpu, share = turns.runs[0].figures(partial(turns.running, 0))
    bare_seconds, bare_cpu, _ = turns.runs[1].figures(partial(turns.running, 1))
    return seconds / bare_seconds, cpu / bare_cpu, share


def trained(path: Path, running: Callable[[Span], float]) -> tuple[float, float]:
    """How long the trial trained, pauses left out, and the CPU seconds it took, pauses included."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    phases = [event for event in events if event["kind"] == "phase"]
    at = next(index for index, event in enumerate(phases) if event["name"] == "train")
    begin, end = phases[at], phases[at + 1]
    pauses = [(event["t"] - event["seconds"], event["t"]) for event in events if event["kind"] == "pause"]
    seconds = running((begin["t"], end["t"])) - sum(running(pause) for pause in pauses)
    return seconds, end["process_cpu_s"] - begin["process_cpu_s"]


def find_child(folder: Path) -> tuple[int, Path] | None:
    """The trial process that works below a folder, and where."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trainoff.runner.trial_main" in words and str(folder) in words[-1]:
            return process.pid, Path(words[-1])
    return None


def doubts(values: Sequence[float], controls: Sequence[float], most: float) -> list[str]:
    """Why nothing can be said about what trials cost; the orders alternate, and there may be no controls."""
    found, control = interval(values), interval(controls or [1.0])
    reasons = []
    if found.level is None:
        reasons.append(f"{len(values)} pairs give no interval, {FEWEST} do")
    if abs(control.median - 1) > SEES:
        reasons.append(f"the controls' median is {control.median:.4f}")
    if control.high - control.low > 2 * SEES:
        reasons.append(f"the controls' median may be anything from {control.low:.4f} to {control.high:.4f}")
    for whose, ratios in (("trials", values), ("controls", controls)):
        orders = [statistics.median(half) for half in (ratios[::2], ratios[1::2]) if half]
        if max(orders, default=0.0) - min(orders, default=0.0) > SEES:
            reasons.append(f"the {whose} gave {orders[0]:.4f} in one order and {orders[1]:.4f} in the other")
    if found.low <= most < found.high:
        reasons.append(f"{most} lies within the interval")
    return reasons


def told(name: str, values: Sequence[float], controls: Sequence[float], most: float) -> int:
    """Print the medians with their intervals and what follows from them, as an exit code."""
    for whose, ratios in ((name, values), (f"  control, {name}", controls)):
        if ratios:
            found = interval(ratios)
            print(f"{whose:<30} {found.median:.4f}  ({found.low:.4f} to {found.high:.4f})")
    if reasons := doubts(values, controls, most):
        print(f"  at most {most}: cannot decide: {'; '.join(reasons)}")
        return CANNOT_DECIDE
    good = interval(values).median <= most
    print(f"  at most {most}: {'ok' if good else 'TOO MUCH'}")
    return OK if good else TOO_MUCH


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
    os.environ["TRAINOFF_CONTROL_S"] = "0"  # the runner's own control takes seconds and says nothing here
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
    print(
        f"{options.engine}, {options.pairs} pairs, {options.epochs} epoch(s) of mnist-mlp each, medians with intervals"
    )
    (times, cpu, shares), (control_times, control_cpu, _) = zip(*rows, strict=True), zip(*controls, strict=True)
    columns = ((times, control_times), (cpu, control_cpu), (shares, ()))
    ends = [told(name, *column, most) for (name, most), column in zip(MOST.items(), columns, strict=True)]
    if CANNOT_DECIDE in ends:
        print("What may help to decide: more --pairs, more --epochs, a quieter machine.")
    return TOO_MUCH if TOO_MUCH in ends else max(ends)


if __name__ == "__main__":
    sys.exit(main())
