"""`trainoff plan`: the trials that would run, and how long it should take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.analysis import varying_keys
from trainoff.analysis.format import about, count, seconds, value_text
from trainoff.cli import common
from trainoff.records import Store, scan
from trainoff.report.tables import Column, heading, setting, table
from trainoff.runner.estimate import Estimator
from trainoff.runner.runner import prepare
from trainoff.runner.status import check_preconditions
from trainoff.study import Study

if TYPE_CHECKING:
    from rich.console import Console


_SHOWN = ("engine", "workload", "mode", "workers", "cores", "memory_gb", "cluster")


def plan_of(study: Study, out: Path) -> dict[str, Any]:
    """The trials in the order they will run; `seconds` is an estimate, `status` what there is already."""
    estimator = estimator_for(out)
    trials = []
    for task in prepare(study, Store(out / study.name)):
        refused = check_preconditions(task.trial, task.engine)
        trials.append(
            {
                "trial_id": task.trial_id,
                "status": task.record.status if task.record else None,
                "to_run": task.to_run,
                "unsupported": refused.reason if refused else None,
                "seconds": 0.0 if refused else estimator.seconds(task.trial),
                **task.trial.identity(),
                "params": task.trial.public_params(),
                "repetition": task.trial.repetition,
            }
        )
    left = sum(trial["seconds"] for trial in trials if trial["to_run"])
    return {"study": study.name, "trials": trials, "seconds": left, "from_records": estimator.known}


def estimator_for(out: Path) -> Estimator:
    """Estimates from whatever has been recorded below a folder."""
    return Estimator(scan(out)[0] if out.is_dir() else [])


def tell(planned: dict[str, Any], console: Console) -> None:
    """The plan as a table, a line per setting, and what all of them share below it."""
    trials = planned["trials"]
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        by_setting.setdefault(json.dumps(_settings(trial), sort_keys=True), []).append(trial)
    lines = list(by_setting.values())
    settings = [_settings(line[0]) for line in lines]
    keys = varying_keys(settings)
    shared = {key: value for key, value in settings[0].items() if value is not None and _shared(settings, key)}
    console.print(table(_columns(lines, settings, keys), console.width, [None] * len(lines), folds=True))
    alike = ", ".join(f"{key} {value_text(value)}" for key, value in shared.items() if key != "engine")
    console.print(f"\nAll with {alike}.", style="dim")
    for why in dict.fromkeys(f"{trial['engine']}: {trial['unsupported']}" for trial in trials if trial["unsupported"]):
        console.print(f"Cannot run here: {why}", style="yellow")
    console.print(_summary(planned))


def _shared(settings: list[dict[str, Any]], key: str) -> bool:
    """Whether all settings have a key, and the same value of it."""
    return len({json.dumps(setting.get(key)) for setting in settings}) == 1


def _settings(trial: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides a trial but its seed."""
    return {**{key: trial[key] for key in _SHOWN}, **trial["params"]}


def _columns(lines: list[list[dict[str, Any]]], settings: list[dict[str, Any]], keys: list[str]) -> list[Column]:
    own = [key for key in keys if key != "engine"]
    columns = [
        Column("engine", [line[0]["engine"] for line in lines]),
        Column("seeds", [_range([trial["seed"] for trial in line]) for line in lines], worth=50),
        Column("about", [_about(line) for line in lines], right=True),
        Column("", [_note(line) for line in lines], worth=60),
    ]
    if own:
        cells = [setting([one.get(key, "-") for key in own]) for one in settings]
        columns.insert(1, Column(heading(own), cells, shrinks=True))
    return columns


def _about(line: list[dict[str, Any]]) -> str:
    return seconds(None if line[0]["unsupported"] else sum(trial["seconds"] for trial in line))


def _range(seeds: list[int]) -> str:
    first, last = min(seeds), max(seeds)
    if first == last:
        return str(first)
    return f"{first}-{last}" if len(seeds) == last - first + 1 else ", ".join(map(str, sorted(seeds)))


def _note(line: list[dict[str, Any]]) -> str:
    """What is there of a setting already, or that it cannot run."""
    if line[0]["unsupported"]:
        return "cannot run"
    statuses = [trial["status"] for trial in line if not trial["to_run"]]
    if not statuses:
        return ""
    there = ", ".join(dict.fromkeys(statuses))
    return f"{there} already" if len(statuses) == len(line) else f"{len(statuses)} of {len(line)} already"


def _summary(planned: dict[str, Any]) -> str:
    trials = planned["trials"]
    missing = [trial for trial in trials if trial["to_run"]]
    there = len(trials) - len(missing)
    kept = f", {there} of them already there" if there else ""
    basis = {0: "a rough guess until there are records", len(trials): "from earlier records"}.get(
        planned["from_records"], "partly from earlier records"
    )
    ahead = f"about {about(planned['seconds'])} ({basis})" if missing else "nothing to do"
    return f"{planned['study']}: {count(len(trials), 'trial')}{kept}; {ahead}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_repeat(common.add_study(common.with_json(parser)))


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(plan_of(common.read_study(options), options.out), tell, options)
