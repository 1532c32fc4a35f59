"""`trainoff tune`: search each engine's own parameters for the shortest time to target."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from trainoff.analysis.format import about, count, quality, seconds, target_text
from trainoff.cli import common
from trainoff.cli.run import Bars
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.runner import machine
from trainoff.runner.events import TrialState
from trainoff.runner.runner import RunObserver, Task
from trainoff.study import Study
from trainoff.tuning import (
    EngineTuning,
    TuneOptions,
    TuneStep,
    TuningResult,
    check,
    default_path,
    prepare_data,
    tune,
    write,
)
from trainoff.tuning.results import time_of
from trainoff.tuning.search import Candidate
from trainoff.tuning.tuned_study import check_overrides, check_path
from trainoff.tuning.tuner import ROUNDS

REFRESH_S = 1.0  # to redraw costs CPU time that the running trial needs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_study(parser).set_defaults(repeat=None)
    add = parser.add_argument
    add("--minutes", type=float, required=True, metavar="M", help="time for all engines together")
    add("--target", type=float, metavar="T", help="target to tune for (the hardest that the recipe reaches)")
    add("--candidates", type=int, metavar="N", help="try at most N candidates of each engine")
    about_rounds = "rounds of the race at the end (5; fewer prove nothing)"
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=about_rounds)
    add("-o", "--output", type=Path, metavar="FILE", help="study file to write (STUDY-tuned.toml)")


def execute(given: argparse.Namespace) -> int:
    """Tune a study and print the result; the exit code is 0 if an engine reached a target without a Ctrl-C."""
    common.stop_on_signals()
    options = TuneOptions(given.minutes, given.target, given.candidates, given.rounds)
    study = common.read_study(given)
    console = common.console(stderr=given.json)
    path = given.output or default_path(study.path)
    check_path(path, study.path)
    check_overrides(study)
    this_machine = machine.describe_line()
    console.print(f"{'this machine':<14} {this_machine}")
    check(study, options)
    with Bars(console) as bars:
        prepare_data(study, bars)
    with TuneProgress(console, options.minutes) as progress:
        result = tune(study, given.out, options, progress.step, progress)
    if result.reached:
        write(study, result, path, this_machine)
    if given.json:
        print(json.dumps({**result.to_json(), "file": str(path) if result.reached else None}, indent=1))
    print_result(result, study, given.out, path, console)
    return 130 if result.interrupted else 0 if result.reached else 1


class TuneProgress(RunObserver):
    """A bar of the remaining time, and a line for each candidate; outside a terminal only the lines."""

    def __init__(self, console: Console, minutes: float) -> None:
        self._console, self._minutes = console, minutes
        self._waiting = ""
        self._step: TuneStep | None = None
        self._left, self._refreshed = 60 * minutes, 0.0
        self._progress = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            auto_refresh=False,
        )
        self._bar = self._progress.add_task("", total=60 * minutes)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def waiting(self, sentence: str) -> None:
        if sentence != self._waiting:
            self._waiting = sentence
            self._console.print(sentence, soft_wrap=True)

    def update(self, task: Task, state: TrialState) -> None:
        elapsed = time.monotonic() - self._refreshed
        if self._step and elapsed >= REFRESH_S:
            loss = f", loss {state.loss:.3f}" if state.loss is not None else ""
            self._refresh(f"{self._step.engine}: {self._step.name}, {state.phase}{loss}", self._left - elapsed)

    def step(self, step: TuneStep) -> None:
        """Show a candidate that is about to run, or has just run."""
        self._step = step
        self._refresh(f"{step.engine}: {step.name}", step.left)
        if step.record:
            self._console.print(describe_step(step), soft_wrap=True)

    def _refresh(self, text: str, left: float) -> None:
        self._left, self._refreshed = max(0.0, left), time.monotonic()
        completed = 60 * self._minutes - self._left
        self._progress.update(self._bar, completed=completed, description=f"{text} · {about(self._left)} left")
        self._progress.refresh()


def describe_step(step: TuneStep) -> str:
    """Return the result of a candidate in one line."""
    record = step.record
    assert record is not None
    values = _values(step.candidate) or "the recipe's values"
    target = step.target
    reached = time_of(record, target) if target is not None else None
    if target is not None and reached is not None:
        best = " (the best so far)" if step.best is not None and reached < step.best else ""
        result = f"{target_text(record.metric, target)} after {seconds(reached)}{best}"
    elif record.status != "ok":
        result = record.reason or record.status
    else:
        result = f"{record.metric} {quality(record.test_metrics.get(record.metric))}"
    return f"{step.engine}, {step.name}: {values}: {result}"


def print_result(result: TuningResult, study: Study, out: Path, path: Path, console: Console) -> None:
    """Print a row and a sentence for each engine, and where the tuned study and the records are."""
    if any(one.tried for one in result.engines):
        console.print()
        console.print(_table(result, console))
        console.print()
    for one in result.engines:
        console.print(one.sentence, soft_wrap=True)
    if result.interrupted:
        kept = f"{count(result.records, 'new record')} in {out / f'{study.name}-tune'}"
        console.print(f"\nstopped; {kept}; the same command goes on from here", soft_wrap=True)
    if result.reached:
        console.print(f"\nThe study with the best values: {path}        Next: trainoff run {path}", soft_wrap=True)
    elif not result.interrupted:
        targets = " or ".join(dict.fromkeys(_target(one) for one in result.engines if one.tried and one.target))
        console.print(
            f"\nNo trial reached {targets or 'a target'}, so no file was written; give the study an easier target, "
            "as in --set targets=[0.9], or more epochs",
            soft_wrap=True,
        )


def _table(result: TuningResult, console: Console) -> Table:
    rows = [one for one in result.engines if one.tried]
    columns = [
        Column("engine", [one.engine for one in rows], ALWAYS),
        Column("target", [_target(one) for one in rows], ALWAYS),
        Column("candidates", [str(len(one.tried)) for one in rows], 20, right=True),
        Column("recipe", [_median(one, 1) for one in rows], ALWAYS, right=True),
        Column("best", [_median(one, 0) for one in rows], ALWAYS, right=True),
        Column("verdict", [one.verdict for one in rows], ALWAYS),
        Column("values", [_values(one.winner) or "the recipe's" for one in rows], 30, shrinks=True),
    ]
    return table(columns, console.width)


def _target(one: EngineTuning) -> str:
    return "-" if one.target is None else target_text(one.tried[0][1].metric, one.target)


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{key} {value}" for key, value in candidate.items())


def _median(one: EngineTuning, side: int) -> str:
    """Return the median time to target of challenger (0) or recipe (1) in the race; without a race, in the search."""
    if one.target is None:
        return "-"
    if one.comparison and one.comparison.n:
        group = (one.comparison.a, one.comparison.b)[side]
        return seconds(group.median(one.comparison.figure.value))
    candidate = {} if side else dict(one.challenger or {})
    if side == 0 and not candidate:
        return "-"
    record = next(record for tried, record in one.tried if dict(tried) == candidate)
    return seconds(time_of(record, one.target))
