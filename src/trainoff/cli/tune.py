"""`trainoff tune`: each engine at its best: search its own parameters."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trainoff.analysis.format import about, count, quality, seconds, target_text
from trainoff.cli import common
from trainoff.cli.run import Bars
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.runner import machine
from trainoff.runner.events import TrialState
from trainoff.runner.runner import NullObserver, Task
from trainoff.study import Study
from trainoff.tuning import Tuned, TuneOptions, TuneStep, Tuning, check, default_place, get_rows, tune, write
from trainoff.tuning.outcome import time_of
from trainoff.tuning.tuned_study import check_overrides, check_place

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_S = 1.0  # drawing costs CPU that the running trial may want


def tune_study(study: Study, out: Path, wish: TuneOptions, place: Path | None, console: Console, as_json: bool) -> int:
    """Tune a study for a person; the exit code is 0 if somebody reached a target and nobody pressed Ctrl-C."""
    place = place or default_place(study.path)
    check_place(place, study.path)
    check_overrides(study)
    here = machine.describe_line()
    console.print(f"{'this machine':<14} {here}")
    check(study, wish)
    with Bars(console) as bars:
        get_rows(study, bars)
    with TuneProgress(console, wish.minutes) as progress:
        found = tune(study, out, wish, progress.step, progress)
    if found.reached:
        write(study, found, place, here)
    if as_json:
        print(json.dumps({**found.to_json(), "file": str(place) if found.reached else None}, indent=1))
    tell(found, study, out, place, console)
    return 130 if found.interrupted else 0 if found.reached else 1


class TuneProgress(NullObserver):
    """A bar of the time that is left, and a line for each candidate; outside a terminal the lines alone."""

    def __init__(self, console: Console, minutes: float) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Drawn

        self._console, self._minutes = console, minutes
        self._waiting = ""
        self._step: TuneStep | None = None
        self._left, self._drawn_at = 60 * minutes, 0.0
        self._drawn = Drawn(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            auto_refresh=False,
        )
        self._bar = self._drawn.add_task("", total=60 * minutes)

    def __enter__(self) -> Self:
        self._drawn.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drawn.stop()

    def waiting(self, sentence: str) -> None:
        if sentence != self._waiting:
            self._waiting = sentence
            self._say(sentence)

    def update(self, task: Task, state: TrialState) -> None:
        gone = time.monotonic() - self._drawn_at
        if self._step and gone >= REFRESH_S:
            loss = f", loss {state.loss:.3f}" if state.loss is not None else ""
            self._draw(f"{self._step.engine}: {self._step.what}, {state.phase}{loss}", self._left - gone)

    def step(self, step: TuneStep) -> None:
        """A candidate is about to run, or has just run."""
        self._step = step
        self._draw(f"{step.engine}: {step.what}", step.left)
        if step.record:
            self._say(line(step))

    def _draw(self, what: str, left: float) -> None:
        self._left, self._drawn_at = max(0.0, left), time.monotonic()
        left = self._left
        self._drawn.update(self._bar, completed=60 * self._minutes - left, description=f"{what} · {about(left)} left")
        self._drawn.refresh()

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def line(step: TuneStep) -> str:
    """How a candidate did, in a line."""
    record = step.record
    assert record is not None
    values = ", ".join(f"{key} {value}" for key, value in step.candidate.items()) or "as the recipe says"
    target = step.target
    reached = time_of(record, target) if target is not None else None
    if target is not None and reached is not None:
        new = " (the best so far)" if step.best is not None and reached < step.best else ""
        done = f"{target_text(record.metric, target)} after {seconds(reached)}{new}"
    elif record.status != "ok":
        done = record.reason or record.status
    else:
        done = f"{record.metric} {quality(record.test_metrics.get(record.metric))}"
    return f"{step.engine}, {step.what}: {values}: {done}"


def tell(found: Tuning, study: Study, out: Path, place: Path, console: Console) -> None:
    """What came out: a line for each engine, the sentences, and where it all is."""
    if any(one.tried for one in found.engines):
        console.print()
        console.print(_board(found, console))
        console.print()
    for one in found.engines:
        console.print(one.sentence, soft_wrap=True)
    folder = out / f"{study.name}-tune"
    if found.interrupted:
        kept = f"stopped; {count(found.records, 'new record')} in {folder}; the same command goes on from here"
        console.print(f"\n{kept}", soft_wrap=True)
    if found.reached:
        console.print(f"\nThe study with the best values: {place}        Next: trainoff run {place}", soft_wrap=True)
    elif not found.interrupted:
        console.print(f"\n{_nobody(found)}", soft_wrap=True)


def _nobody(found: Tuning) -> str:
    targets = [
        target_text(one.tried[0][1].metric, one.target) for one in found.engines if one.tried and one.target is not None
    ]
    goal = " or ".join(dict.fromkeys(targets)) or "a target"
    return (
        f"Nobody reached {goal}, so nothing was written; give the study an easier target, as in "
        "--set targets=[0.9], or more epochs"
    )


def _board(found: Tuning, console: Console) -> object:
    rows = [one for one in found.engines if one.tried]
    columns = [
        Column("engine", [one.engine for one in rows], ALWAYS),
        Column("target", [_goal(one) for one in rows], ALWAYS),
        Column("candidates", [str(len(one.tried)) for one in rows], 20, right=True),
        Column("recipe", [_median(one, 1) for one in rows], ALWAYS, right=True),
        Column("best", [_median(one, 0) for one in rows], ALWAYS, right=True),
        Column("verdict", [one.verdict for one in rows], ALWAYS),
        Column("values", [_values(one) for one in rows], 30, shrinks=True),
    ]
    return table(columns, console.width, [None] * len(rows))


def _goal(one: Tuned) -> str:
    return "-" if one.target is None else target_text(one.tried[0][1].metric, one.target)


def _values(one: Tuned) -> str:
    return ", ".join(f"{key} {value}" for key, value in one.winner.items()) or "the recipe's"


def _median(one: Tuned, side: int) -> str:
    """The median time to target of the challenger or the recipe in the race; without a race, in the search."""
    if one.target is None:
        return "-"
    if one.comparison and one.comparison.n:
        group = (one.comparison.a, one.comparison.b)[side]
        return seconds(group.median(one.comparison.figure.value))
    wanted = {} if side else dict(one.challenger or {})
    if side == 0 and not wanted:
        return "-"
    record = next(record for candidate, record in one.tried if dict(candidate) == wanted)
    return seconds(time_of(record, one.target))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_choice(parser).set_defaults(repeat=None)
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="how long it may take, all engines")
    parser.add_argument(
        "--target", type=float, metavar="T", help="what to tune for (the hardest that a recipe reaches)"
    )
    parser.add_argument("--candidates", type=int, metavar="N", help="try at most so many of each engine")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of the race at the end (5; fewer prove nothing)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the study file to write (STUDY-tuned.toml)")


def execute(options: argparse.Namespace) -> int:
    from trainoff.tuning import TuneOptions

    common.end_politely()
    wanted = TuneOptions(options.minutes, options.target, options.candidates, options.rounds)
    study = common.read_study(options)
    return tune_study(study, options.out, wanted, options.output, common.console(stderr=options.json), options.json)
