"""`trainoff plan`: list the trials that would run, and estimate the time they take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainoff.analysis.format import about, count, seconds, value_text
from trainoff.analysis.groups import varying_keys
from trainoff.cli import common
from trainoff.cli.common import Row
from trainoff.records import Store
from trainoff.report.tables import Column, heading, setting, table
from trainoff.runner.estimate import Estimator
from trainoff.runner.runner import prepare
from trainoff.runner.status import check_preconditions
from trainoff.study import Study

_KEYS = ("engine", "workload", "mode", "workers", "cores", "memory_gb", "cluster")


def plan_of(study: Study, out: Path) -> dict[str, Any]:
    """Return the trials in the order they run; `seconds` is an estimate, `status` that of an earlier record."""
    estimator = Estimator.from_records_in(out)
    trials = []
    for task in prepare(study, Store(out / study.name)):
        problem = check_preconditions(task.trial, task.engine)
        trials.append(
            {
                "trial_id": task.trial_id,
                "status": task.record.status if task.record else None,
                "to_run": task.to_run,
                "unsupported": problem.reason if problem else None,
                "seconds": 0.0 if problem else estimator.seconds(task.trial),
                **task.trial.identity(),
                "params": task.trial.public_params(),
                "repetition": task.trial.repetition,
            }
        )
    left = sum(trial["seconds"] for trial in trials if trial["to_run"])
    return {"study": study.name, "trials": trials, "seconds": left, "from_records": estimator.known}


def print_plan(plan: dict[str, Any], console: Console) -> None:
    """Print a table with a row per setting, and below it the values that all settings share."""
    trials = plan["trials"]
    groups: dict[str, list[Row]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(_values(trial), sort_keys=True), []).append(trial)
    rows = list(groups.values())
    settings = [_values(row[0]) for row in rows]
    columns = [
        Column("engine", [row[0]["engine"] for row in rows]),
        Column("seeds", [_seeds([trial["seed"] for trial in row]) for row in rows], priority=50),
        Column("about", [_duration(row) for row in rows], right=True),
        Column("", [_note(row) for row in rows], priority=60),
    ]
    if keys := [key for key in varying_keys(settings) if key != "engine"]:
        cells = [setting([one.get(key, "-") for key in keys]) for one in settings]
        columns.insert(1, Column(heading(keys), cells, shrinks=True))
    console.print(table(columns, console.width, folds=True))
    shared = ", ".join(
        f"{key} {value_text(value)}"
        for key, value in settings[0].items()
        if key != "engine" and value is not None and all(one.get(key) == value for one in settings)
    )
    console.print(f"\nAll with {shared}.", style="dim")
    for problem in dict.fromkeys(f"{one['engine']}: {one['unsupported']}" for one in trials if one["unsupported"]):
        console.print(f"Cannot run here: {problem}", style="yellow")
    console.print(_summary(plan))


def _values(trial: Row) -> Row:
    """Return everything that decides a trial except its seed."""
    return {**{key: trial[key] for key in _KEYS}, **trial["params"]}


def _duration(row: Sequence[Row]) -> str:
    return seconds(None if row[0]["unsupported"] else sum(trial["seconds"] for trial in row))


def _seeds(seeds: list[int]) -> str:
    first, last = min(seeds), max(seeds)
    if first == last:
        return str(first)
    return f"{first}-{last}" if len(seeds) == last - first + 1 else ", ".join(map(str, sorted(seeds)))


def _note(row: Sequence[Row]) -> str:
    """Say which trials of a setting are done, or that they cannot run."""
    if row[0]["unsupported"]:
        return "cannot run"
    statuses = [trial["status"] for trial in row if not trial["to_run"]]
    if not statuses:
        return ""
    if len(statuses) == len(row):
        return f"{', '.join(dict.fromkeys(statuses))} already"
    return f"{len(statuses)} of {len(row)} already"


def _summary(plan: dict[str, Any]) -> str:
    trials = plan["trials"]
    left = sum(trial["to_run"] for trial in trials)
    done = f", {len(trials) - left} of them already done" if left < len(trials) else ""
    basis = {0: "a rough guess until there are records", len(trials): "from earlier records"}.get(
        plan["from_records"], "partly from earlier records"
    )
    duration = f"about {about(plan['seconds'])} ({basis})" if left else "nothing to do"
    return f"{plan['study']}: {count(len(trials), 'trial')}{done}; {duration}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_repeat(common.add_study(common.with_json(parser)))


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(plan_of(common.read_study(options), options.out), print_plan, options)
