"""`trainoff run`: run the remaining trials of a study."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trainoff.analysis import by_workload, groups, headline_target
from trainoff.analysis.format import about, count, quality, seconds, size
from trainoff.cli import common
from trainoff.cli.show import print_board, print_json
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write
from trainoff.records import STUDY_COPY, Record, Store
from trainoff.report.progress import PlainLines, ProgressFile, keys_of, setting_of
from trainoff.report.tables import ALWAYS, Column, heading, table
from trainoff.runner import machine
from trainoff.runner.estimate import Clock, Estimator
from trainoff.runner.events import TrialState
from trainoff.runner.runner import Runner, RunObserver, RunResult, Task, get_data, prepare
from trainoff.runner.status import STATUSES
from trainoff.study import Study, nearest


def run_study(study: Study, out: Path, retry: Sequence[str], console: Console) -> int:
    """Run a study and print its board; the exit code is 0 only if every trial is `ok` or `unsupported`."""
    for status in retry:
        if status not in ("failed", *STATUSES):
            close = nearest(status, ["failed", *STATUSES])
            hint = f"did you mean `{close}`?" if close else f"use `failed` or one of {', '.join(STATUSES)}"
            raise TrainoffError(f"--retry {status}: that is not a status; {hint}")
    outcome, store = _run(study, out, retry, console)
    if outcome.interrupted:
        kept = sum(not task.to_run and not (task.record and task.record.unfinished) for task in outcome.tasks)
        console.print(f"\nstopped; {count(kept, 'finished trial')} kept; the same command goes on from here")
    else:
        print_board(outcome.records, store.folder, console)
    folder = shlex.quote(str(store.folder))
    parts = [f"Records: {store.folder}", f"Report: trainoff report {folder}", *next_step(outcome.records, folder)]
    console.print(f"\n{'        '.join(parts)}", style="dim", soft_wrap=True)
    if outcome.interrupted:
        return 130
    return 1 if any(record.failed for record in outcome.records) else 0


def run_part(study: Study, out: Path, console: Console) -> None:
    """Run one of several studies, without a board; raise KeyboardInterrupt after a Ctrl-C."""
    if _run(study, out, (), console)[0].interrupted:
        raise KeyboardInterrupt


def _run(study: Study, out: Path, retry: Sequence[str], console: Console) -> tuple[RunResult, Store]:
    """Prepare the data and run the remaining trials under a live table."""
    store = Store(out / study.name)
    store.prepare()
    console.print(f"{'this machine':<14} {machine.describe_line()}")
    with Bars(console) as bars:
        get_data(study, bars)
    _copy_study(study, store.folder)
    tasks = prepare(study, store, retry)
    clock = Clock(tasks, Estimator.from_records_in(out))
    workloads = ", ".join(dict.fromkeys(task.trial.workload for task in tasks))
    left = sum(task.to_run for task in tasks)
    duration = f"about {about(clock.left())}" if left else "all done already"
    done = f" ({len(tasks) - left} done already)" if 0 < left < len(tasks) else ""
    console.print(f"{study.name:<14} {workloads} · {count(len(tasks), 'trial')}{done} · {duration}\n")
    return _run_tasks(store, tasks, clock, console), store


def _copy_study(study: Study, folder: Path) -> None:
    """Copy the study beside its records, below the command that runs it."""
    command = shlex.join(["trainoff", *sys.argv[1:]])
    with contextlib.suppress(OSError):  # a run does not fail for it
        atomic_write(folder / STUDY_COPY, redact(f"# {command}\n{study.path.read_text()}"))


def redact(text: str) -> str:
    """Return a study without credentials in addresses, secrets, passwords and tokens."""
    text = re.sub(r"://[^/@\s\"']+@", "://(left out)@", text)
    return re.sub(
        r"""((?:secret|password|token)[\w.-]*["']?\s*=\s*)("[^"]*"|'[^']*'|[^\s,}]+)""", r'\1"(left out)"', text
    )


def _run_tasks(store: Store, tasks: list[Task], clock: Clock, console: Console) -> RunResult:
    if not any(task.to_run for task in tasks):
        return RunResult(tasks)
    with ProgressFile(store, clock) as progress:
        if not console.is_terminal or console.is_dumb_terminal:
            lines = PlainLines(clock, partial(console.print, soft_wrap=True))
            outcome = Runner(store, clock, lines, progress).run(tasks)
            console.print()
            return outcome
        with LiveTable(clock, console) as live:
            return Runner(store, clock, live, progress).run(tasks)


def next_step(records: Sequence[Record], folder: str) -> list[str]:
    """Return the `trainoff advise` command, if a setting reached a target."""
    found = by_workload(groups(records))
    target = headline_target(found[0]) if found else None
    if target is None:
        return []
    workload = f" --workload {found[0][0].first.workload}" if len(found) > 1 else ""
    return [f"Next: trainoff advise {folder} --target {target:g}{workload}"]


REFRESH_S = 1.0  # to redraw costs CPU time that the running trial needs
SYMBOLS = {"ok": ("✓", "green"), "unsupported": ("-", "dim"), "interrupted": ("!", "yellow")}
OTHER_LINES = 5  # of the terminal: heading, summary, notes


class LiveTable(RunObserver):
    """A table of the trials, redrawn about once a second while they run."""

    def __init__(self, clock: Clock, console: Console) -> None:
        self._clock = clock
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._tasks: Sequence[Task] = ()
        self._keys: Sequence[str] = ()
        self._running: Task | None = None
        self._state: TrialState | None = None
        self._note = ""
        self._refreshed = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._running = self._state = None
        self._live.transient = not any(task.to_run for task in self._tasks)  # the rows stay on the screen
        self._refresh()
        self._live.stop()

    def planned(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._keys = keys_of(tasks)
        self._refresh()

    def waiting(self, sentence: str) -> None:
        self._note = sentence
        self._refresh()

    def started(self, task: Task) -> None:
        self._running, self._state, self._note = task, None, ""
        self._refresh()

    def update(self, task: Task, state: TrialState) -> None:
        self._state = state
        if time.monotonic() - self._refreshed >= REFRESH_S:
            self._refresh()

    def finished(self, task: Task, record: Record) -> None:
        self._running = self._state = None
        self._refresh()

    def _refresh(self) -> None:
        self._refreshed = time.monotonic()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        rows = [self._row(task) for task in self._window()]
        columns = [
            Column(name, [row[index] for row in rows], priority, right)
            for index, (name, priority, right) in enumerate(HEADINGS)
        ]
        if self._keys:
            columns[2] = replace(columns[2], heading=heading(self._keys), shrinks=True)
        else:
            del columns[2]
        outer = Table.grid()
        outer.add_row(table(columns, self._console.width))
        outer.add_row(Text(f"  {self._summary()}", style="dim"))
        return outer

    def _window(self) -> Sequence[Task]:
        """Return as many tasks as fit the terminal, the running one among them."""
        height = max(3, self._console.height - OTHER_LINES)
        if len(self._tasks) <= height:
            return self._tasks
        running = next((index for index, task in enumerate(self._tasks) if task is self._running), 0)
        start = min(max(0, running - height // 2), len(self._tasks) - height)
        return self._tasks[start : start + height]

    def _row(self, task: Task) -> list[Text | str]:
        trial = task.trial
        name = [trial.engine, setting_of(task, self._keys), trial.mode, str(trial.workers)]
        if task is self._running:
            left = about(self._clock.running_left())
            return [Text("▶", style="cyan"), *name, *_progress(self._state), left]
        if task.record and not task.to_run:
            symbol, style = SYMBOLS.get(task.record.status, ("✗", "red"))
            return [Text(symbol, style=style), *name, *_result(task.record), ""]
        return [Text("·", style="dim"), *name, Text("waiting", style="dim"), *[""] * 6]

    def _summary(self) -> str:
        if self._note:
            return self._note
        done = sum(not task.to_run for task in self._tasks)
        elapsed, left = seconds(self._clock.gone()), about(self._clock.left())
        pages = "".join(f" · {name} {url}" for name, url in (self._state.pages if self._state else {}).items())
        return f"{done} of {len(self._tasks)} · {elapsed} elapsed · about {left} left{pages}"


HEADINGS: list[tuple[str, int, bool]] = [  # name, priority, whether it is aligned to the right
    (" ", ALWAYS, False),
    ("engine", ALWAYS, False),
    ("setting", ALWAYS, False),
    ("mode", 20, False),
    ("W", 25, True),
    ("phase", ALWAYS, False),
    ("result", ALWAYS, True),
    ("train", ALWAYS, True),
    ("CPU", 30, True),
    ("memory", 30, True),
    ("network", 10, True),
    ("left", 40, True),
]


def _progress(state: TrialState | None) -> list[str]:
    if state is None:
        return ["starting", "", "", "", "", ""]
    now = time.monotonic()
    loss = f"loss {state.loss:.3f}" if state.loss is not None else ""
    train = seconds(now - state.train_start - state.paused_s) if state.train_start else ""
    cpu, memory = seconds(state.current("user_s", "system_s")), size(state.current("pss"))
    return [state.phase, loss, train, cpu, memory, size(state.current_network_bytes())]


def _result(record: Record) -> list[str]:
    return [
        "done" if record.status == "ok" else record.status,
        quality(record.result),
        seconds(record.train_s),
        seconds(record.cpu_s),
        size(record.peak_memory_bytes),
        size(record.network_bytes),
    ]


class Bars(Progress):
    """Progress bars for `trainoff.data`, one for each step; none outside a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._ids: dict[str, TaskID] = {}

    def __call__(self, step: str, done: int, total: int | None) -> None:
        if step not in self._ids:
            self._ids[step] = self.add_task(step, total=total)
        self.update(self._ids[step], completed=done, total=total)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_repeat(common.add_study(common.with_json(parser)))
    about_retry = "run trials with this status again; `failed` stands for every failure"
    parser.add_argument("--retry", action="append", default=[], metavar="STATUS", help=about_retry)


def execute(options: argparse.Namespace) -> int:
    common.stop_on_signals()
    study = common.read_study(options)
    code = run_study(study, options.out, options.retry, common.console(stderr=options.json))
    if options.json:
        print_json(options.out / study.name)
    return code
