"""`trainoff run`: bring the data, run what is missing under a live table, and say what came out."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import by_workload, groups, headline_target
from trainoff.analysis.format import about, count
from trainoff.cli.live_table import Bars, LiveTable
from trainoff.cli.plan import estimator_for
from trainoff.cli.show import print_board
from trainoff.errors import TrainoffError
from trainoff.records import STUDY_COPY, Record, Store
from trainoff.report.progress import Bulletin, Lines
from trainoff.runner import machine
from trainoff.runner.estimate import Clock
from trainoff.runner.runner import Conductor, Outcome, Task, Together, get_data, prepare
from trainoff.runner.status import STATUSES
from trainoff.study import Study, nearest

if TYPE_CHECKING:
    from rich.console import Console


def run_study(study: Study, out: Path, retry: Sequence[str], console: Console) -> int:
    """Run a study for a person; the exit code is 0 only if every trial is `ok` or `unsupported`."""
    _check_retry(retry)
    outcome, store = _run(study, out, retry, console)
    _conclude(outcome, store, console)
    if outcome.interrupted:
        return 130
    return 1 if any(record.failed for record in outcome.records) else 0


def run_part(study: Study, out: Path, console: Console) -> None:
    """Run a study as a part of something larger, which says by itself what came out; Ctrl-C ends that, too."""
    if _run(study, out, (), console)[0].interrupted:
        raise KeyboardInterrupt


def _run(study: Study, out: Path, retry: Sequence[str], console: Console) -> tuple[Outcome, Store]:
    """Bring the data, and run what is missing under a live table."""
    store = Store(out / study.name)
    store.prepare()
    console.print(f"{'this machine':<14} {machine.describe_line()}")
    with Bars(console) as bars:
        get_data(study, bars)
    _keep(study, store.folder)
    tasks = prepare(study, store, retry)
    clock = Clock(tasks, estimator_for(out))
    _announce(study, tasks, clock, console)
    return _conduct(store, tasks, clock, console), store


def _keep(study: Study, folder: Path) -> None:
    """Leave a copy of the study beside its records, with the command that ran it, for whoever wants to repeat it."""
    command = shlex.join(["trainoff", *sys.argv[1:]])
    with contextlib.suppress(OSError):  # it is not worth a run
        (folder / STUDY_COPY).write_text(without_keys(f"# {command}\n{study.path.read_text()}"))


def without_keys(text: str) -> str:
    """A study without what should not travel with results: keys in addresses, secrets, passwords and tokens."""
    text = re.sub(r"://[^/@\s\"']+@", "://(left out)@", text)
    return re.sub(
        r"""((?:secret|password|token)[\w.-]*["']?\s*=\s*)("[^"]*"|'[^']*'|[^\s,}]+)""", r'\1"(left out)"', text
    )


def _check_retry(retry: Sequence[str]) -> None:
    for word in retry:
        if word not in ("failed", *STATUSES):
            close = nearest(word, ["failed", *STATUSES])
            hint = f"did you mean `{close}`?" if close else f"use `failed` or one of {', '.join(STATUSES)}"
            raise TrainoffError(f"--retry {word}: that is not a status; {hint}")


def _announce(study: Study, tasks: Sequence[Task], clock: Clock, console: Console) -> None:
    workloads = ", ".join(dict.fromkeys(task.trial.workload for task in tasks))
    missing = sum(task.to_run for task in tasks)
    ahead = f"about {about(clock.left())}" if missing else "all there already"
    kept = f" ({len(tasks) - missing} already there)" if 0 < missing < len(tasks) else ""
    console.print(f"{study.name:<14} {workloads} · {count(len(tasks), 'trial')}{kept} · {ahead}\n")


def _conduct(store: Store, tasks: list[Task], clock: Clock, console: Console) -> Outcome:
    if not any(task.to_run for task in tasks):
        return Outcome(tasks)
    with Bulletin(store, clock) as bulletin:
        if not console.is_terminal or console.is_dumb_terminal:
            lines = Lines(clock, partial(console.print, soft_wrap=True))
            outcome = Conductor(store, Together(clock, lines, bulletin)).run(tasks)
            console.print()
            return outcome
        with LiveTable(clock, console) as live:
            return Conductor(store, Together(clock, live, bulletin)).run(tasks)


def _conclude(outcome: Outcome, store: Store, console: Console) -> None:
    if outcome.interrupted:
        kept = sum(not task.to_run and not (task.record and task.record.unfinished) for task in outcome.tasks)
        console.print(f"\nstopped; {count(kept, 'finished trial')} kept; the same command goes on from here")
    else:
        print_board(outcome.records, store.folder, console)
    where = shlex.quote(str(store.folder))
    parts = [f"Records: {store.folder}", f"Report: trainoff report {where}", *next_step(outcome.records, where)]
    console.print(f"\n{'        '.join(parts)}", style="dim", soft_wrap=True)


def next_step(records: Sequence[Record], where: str) -> list[str]:
    """The command that says what to use, where some setting reached a target."""
    found = by_workload(groups(records))
    if not found:
        return []
    target = headline_target(found[0])
    if target is None:
        return []
    which = f" --workload {found[0][0].first.workload}" if len(found) > 1 else ""
    return [f"Next: trainoff advise {where} --target {target:g}{which}"]
