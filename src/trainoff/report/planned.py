"""The plan of a study: its trials, what each will really use, and how long it should take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.analyse.words import about, count, seconds
from trainoff.conduct.conductor import cannot, prepare
from trainoff.conduct.estimate import Estimator
from trainoff.records import Store, scan
from trainoff.report.lists import plain_table
from trainoff.study import Study

if TYPE_CHECKING:
    from rich.console import Console


def plan_of(study: Study, out: Path) -> dict[str, Any]:
    """The trials in the order they will run; `seconds` is an estimate, `status` what there is already."""
    estimator = estimator_for(out)
    trials = []
    for task in prepare(study, Store(out / study.name)):
        refused = cannot(task)
        trials.append(
            {
                "trial_id": task.trial_id,
                "status": task.record.status if task.record else None,
                "to_run": task.to_run,
                "unsupported": refused.reason if refused else None,
                "seconds": 0.0 if refused else estimator.seconds(task.trial),
                **task.trial.identity(),
                "repetition": task.trial.repetition,
            }
        )
    left = sum(trial["seconds"] for trial in trials if trial["to_run"])
    return {"study": study.name, "trials": trials, "seconds": left, "from_records": estimator.known}


def estimator_for(out: Path) -> Estimator:
    """Estimates from whatever has been recorded below a folder."""
    return Estimator(scan(out)[0] if out.is_dir() else [])


def tell(planned: dict[str, Any], console: Console) -> None:
    """The plan as a table, what all trials share above it."""
    trials = planned["trials"]
    shared = {
        key: value
        for key, value in trials[0]["params"].items()
        if all(t["params"].get(key) == value for t in trials)
    }
    own = list(dict.fromkeys(key for trial in trials for key in trial["params"] if key not in shared))
    headings = [
        "engine",
        "workload",
        "mode",
        "W",
        "cores",
        "seed",
        *(key.replace("_", " ") for key in own),
        "about",
        "",
    ]
    table = plain_table(*headings)
    for trial in trials:
        values = [str(trial[key]) for key in ("engine", "workload", "mode", "workers")]
        values += [
            f"{trial['cores']:g}",
            str(trial["seed"]),
            *(str(trial["params"].get(key, "-")) for key in own),
        ]
        table.add_row(
            *values, seconds(trial["seconds"]), _note(trial), style=None if trial["to_run"] else "dim"
        )
    console.print(table)
    told = ", ".join(f"{key} {value}" for key, value in shared.items() if value is not None)
    console.print(f"\nAll with {told}.", style="dim")
    missing = [trial for trial in trials if trial["to_run"]]
    basis = (
        "from earlier records"
        if planned["from_records"] == len(trials)
        else "a rough guess until there are records"
    )
    there = len(trials) - len(missing)
    kept = f", {there} of them already there" if there else ""
    ahead = f"about {about(planned['seconds'])} ({basis})" if missing else "nothing to do"
    console.print(f"{planned['study']}: {count(len(trials), 'trial')}{kept}; {ahead}")


def _note(trial: dict[str, Any]) -> str:
    if trial["unsupported"]:
        return str(trial["unsupported"])
    return "" if trial["to_run"] else f"{trial['status']} already"
