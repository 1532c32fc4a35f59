"""The cost of trainoff itself: the same engine under trainoff and in a bare loop, as ratios.

    python benchmarks/overhead.py [--pairs 16] [--engine numpy] [--epochs 2]

Method. A pair is one trial under the runner (namespaces, events, snapshots, sampler) and one bare process that only
trains, with the same threads, the same settings of malloc and the same CPU. Each is started alone and stopped as soon
as it trains. Then they train in turns of about a tenth of a second, one stopped while the other continues, so that
changes of the machine affect both alike. The lengths of turns are random, because otherwise the sampler, which wakes
once a second, would always meet the same process. A process that has trained stays stopped until the other has too, so
that only the runner and the supervisor run beside a training. From pair to pair the two change the order of start and
of turns. After each pair comes a control, the same with two bare processes. Train time is the time in which a process
was allowed to run while it trained, without the pauses for snapshots; CPU seconds include the snapshots and the
sampler.

Decision. It needs enough precision: the median of the controls must be 1 within PRECISION, with an interval (95 %) no
wider than PRECISION to either side, and the medians of the two orders must agree within PRECISION, among the trials and
among the controls. Then the interval of the trials' median must lie at or below the limit ("ok") or above it ("TOO
MUCH"). Otherwise it prints "cannot decide" with the reason. Exit code: 1 if anything is too much, otherwise 2 if
anything cannot be decided, otherwise 0.
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
from trainoff.analysis.statistics import FEWEST_FOR_INTERVAL, interval
from trainoff.clusters import THREADS, Cluster
from trainoff.clusters.local import cpus, die_with_parent
from trainoff.records import Store
from trainoff.runner.job import make_job
from trainoff.runner.runner import Runner, RunObserver, prepare
from trainoff.runner.supervisor import KEEP_MEMORY

STUDY = 'name = "overhead"\nworkload = "mnist-mlp"\nengines = ["{engine}"]\n[params]\nepochs = {epochs}\n'
MOST = {"train time": 1.02, "CPU seconds": 1.02, "sampler, share of a core": 0.01}
PRECISION = 0.01  # that the method must have
TURN_S = 0.1
POLL_S = 0.001  # between two checks whether a trial trains
OK, TOO_MUCH, CANNOT_DECIDE = 0, 1, 2  # also exit codes

Span = tuple[float, float]


class BareWatch:
    """A watch that takes no snapshots and costs nothing."""

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
    """Train once in this process; print when it began, then when it ended and the CPU seconds between."""
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


class BareProcess:
    """A process that only trains; the constructor returns when it trains."""

    def __init__(self, planned: study.Study) -> None:
        (trial,) = planned.trials()
        threads = {name: str(int(trial.cores)) for name in THREADS}
        argv = [sys.executable, __file__, "--bare", json.dumps(trial.to_json())]
        environment = {**KEEP_MEMORY, **os.environ, **threads}
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout
        self.pid, self.printed = self.process.pid, self.process.stdout
        self.begin = float(self.printed.readline())

    def done(self) -> bool:
        """Return whether it has trained."""
        return self.process.poll() is not None

    def figures(self, running: Callable[[Span], float]) -> tuple[float, float, float]:
        """Return the seconds of training, the CPU seconds, and no share of a sampler."""
        end, cpu = json.loads(self.printed.read())
        self.process.wait()
        return running((self.begin, end)), cpu, 0.0


class TrialRun:
    """A trial as a user runs it; the constructor returns when it trains."""

    def __init__(self, planned: study.Study, folder: Path) -> None:
        self.folder, store = folder, Store(folder)
        self.thread = threading.Thread(target=Runner(store, RunObserver()).run, args=(prepare(planned, store),))
        self.thread.start()
        while (found := find_trial_process(folder)) is None:
            self._wait(0.05)
        self.pid, folder_of_trial = found
        self.events = folder_of_trial / "events.jsonl"
        while not self._entered("train"):
            self._wait(POLL_S)

    def done(self) -> bool:
        """Return whether it has trained or failed."""
        return self._entered("test") or self._entered("teardown") or not self.events.exists()

    def figures(self, running: Callable[[Span], float]) -> tuple[float, float, float]:
        """Return the seconds of training, the CPU seconds with the sampler's, and the sampler's share of a core."""
        self.thread.join()
        (record,) = Store(self.folder).newest().values()
        assert record.status == "ok", record.reason
        assert record.cold_s
        share: float = record.sampler["cpu_s"] / record.cold_s
        seconds, cpu = trained(next(self.folder.glob("*/events.jsonl")), running)
        return seconds, cpu * (1 + share), share  # of the CPU seconds: time spent stopped is not a cost

    def _entered(self, phase: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return f'"kind": "phase", "name": "{phase}"' in self.events.read_text()
        return False

    def _wait(self, seconds: float) -> None:
        if not self.thread.is_alive():
            raise SystemExit("the trial ended before it trained; `trainoff run` says why")
        time.sleep(seconds)


@dataclass
class Turns:
    """Let two processes train in turns, and keep when each of them was allowed to run."""

    runs: dict[int, BareProcess | TrialRun] = field(default_factory=dict)
    spans: dict[int, list[Span]] = field(default_factory=dict)

    def add(self, side: int, run: BareProcess | TrialRun) -> None:
        """Stop a process that has just begun to train; it has run freely until now."""
        self._signal(run, signal.SIGSTOP)
        self.runs[side], self.spans[side] = run, [(float("-inf"), time.monotonic())]
        if run.done():
            raise SystemExit("it had trained before it could be stopped; take more --epochs")

    def take(self) -> None:
        """Alternate until both have trained; the one that was added first begins."""
        while not all(run.done() for run in self.runs.values()):
            for side, run in self.runs.items():
                if not run.done():
                    start = time.monotonic()
                    self._signal(run, signal.SIGCONT)
                    time.sleep(TURN_S * random.uniform(0.5, 1.5))
                    self._signal(run, signal.SIGSTOP)
                    self.spans[side].append((start, time.monotonic()))

    def release(self) -> None:
        """Let both continue to their ends."""
        for run in self.runs.values():
            self._signal(run, signal.SIGCONT)

    @staticmethod
    def _signal(run: BareProcess | TrialRun, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, number)

    def running(self, side: int, span: Span) -> float:
        """Return how long a process was allowed to run within a span."""
        return sum(max(0.0, min(end, span[1]) - max(begin, span[0])) for begin, end in self.spans[side])


def measure(planned: study.Study, folder: Path | None, pair: int) -> tuple[float, float, float]:
    """Measure one pair: the ratios of train times and of CPU seconds, and the sampler's share of a core.

    `folder` is the trial's, or None for the control of two bare processes.
    """
    turns = Turns()
    try:
        for side in (1, 0) if pair % 2 else (0, 1):
            turns.add(side, TrialRun(planned, folder) if folder and side == 0 else BareProcess(planned))
        turns.take()
    finally:
        turns.release()
    seconds, cpu, share = turns.runs[0].figures(partial(turns.running, 0))
    bare_seconds, bare_cpu, _ = turns.runs[1].figures(partial(turns.running, 1))
    return seconds / bare_seconds, cpu / bare_cpu, share


def trained(path: Path, running: Callable[[Span], float]) -> tuple[float, float]:
    """Return how long the trial trained without pauses, and the CPU seconds with pauses."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    phases = [event for event in events if event["kind"] == "phase"]
    at = next(index for index, event in enumerate(phases) if event["name"] == "train")
    begin, end = phases[at], phases[at + 1]
    pauses = [(event["t"] - event["seconds"], event["t"]) for event in events if event["kind"] == "pause"]
    seconds = running((begin["t"], end["t"])) - sum(running(pause) for pause in pauses)
    return seconds, end["process_cpu_s"] - begin["process_cpu_s"]


def find_trial_process(folder: Path) -> tuple[int, Path] | None:
    """Return the trial process below a folder, and the trial's folder."""
    for process in psutil.process_iter(["cmdline"]):
        argv = process.info["cmdline"] or []
        if "trainoff.runner.trial_main" in argv and str(folder) in argv[-1]:
            return process.pid, Path(argv[-1])
    return None


def reasons_for_doubt(values: Sequence[float], controls: Sequence[float], most: float) -> list[str]:
    """Return why nothing can be decided; the orders alternate in `values`, and there may be no controls."""
    found, control = interval(values), interval(controls or [1.0])
    reasons = []
    if found.level is None:
        reasons.append(f"{len(values)} pairs give no interval, {FEWEST_FOR_INTERVAL} do")
    if abs(control.median - 1) > PRECISION:
        reasons.append(f"the controls' median is {control.median:.4f}")
    if control.high - control.low > 2 * PRECISION:
        reasons.append(f"the controls' median may be anything from {control.low:.4f} to {control.high:.4f}")
    for name, ratios in (("trials", values), ("controls", controls)):
        halves = [statistics.median(half) for half in (ratios[::2], ratios[1::2]) if half]
        if max(halves, default=0.0) - min(halves, default=0.0) > PRECISION:
            reasons.append(f"the {name} gave {halves[0]:.4f} in one order and {halves[1]:.4f} in the other")
    if found.low <= most < found.high:
        reasons.append(f"{most} lies within the interval")
    return reasons


def decide(name: str, values: Sequence[float], controls: Sequence[float], most: float) -> int:
    """Print the medians with their intervals and the decision; return the exit code."""
    for title, ratios in ((name, values), (f"  control, {name}", controls)):
        if ratios:
            found = interval(ratios)
            print(f"{title:<30} {found.median:.4f}  ({found.low:.4f} to {found.high:.4f})")
    if reasons := reasons_for_doubt(values, controls, most):
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
    os.environ["TRAINOFF_CONTROL_S"] = "0"  # the runner's control kernel takes seconds and is not needed
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
    codes = [decide(name, *column, most) for (name, most), column in zip(MOST.items(), columns, strict=True)]
    if CANNOT_DECIDE in codes:
        print("More --pairs, more --epochs or a quieter machine may help to decide.")
    return TOO_MUCH if TOO_MUCH in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
