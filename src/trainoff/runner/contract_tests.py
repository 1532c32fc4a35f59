"""The contract tests: small real trials that any engine must pass, for its author to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainoff import data
from trainoff.engines import Engine
from trainoff.models import FAMILIES
from trainoff.records import Record, Store
from trainoff.runner.runner import Runner, RunObserver, Task
from trainoff.runner.status import check_preconditions
from trainoff.study import Limits, Trial

ROWS = 203  # 21 steps an epoch, the last one of 3 rows

BASE: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "schedule": "constant",
    "batch_size": 10,
    "epochs": 2,
    "l2": 0.0,
    "train_rows": ROWS,
    "snapshot_every": 100,
    "stop": None,
}

WILD = 1e30  # a learning rate that no training survives

Check = Callable[[Record], str | None]  # returns what is wrong with the record, or None


@dataclass(frozen=True)
class Case:
    """One contract test: a trial, and the check of its record."""

    name: str
    trial: Trial
    check: Check


@dataclass(frozen=True)
class TestFinding:
    """The result of a case: `wrong` is None if it passed, and `note` then says how exact it was."""

    case: str
    wrong: str | None
    note: str = ""
    traceback: str | None = None


def cases(engine: Engine) -> list[Case]:
    """Return the contract tests of an engine, without those that are equal once it has settled its parameters."""
    found = [Case(name, _settled(engine, trial), _check_equivalence) for name, trial in _equivalence_trials(engine)]
    model = next((kind for kind in FAMILIES if kind in engine.models), next(iter(FAMILIES)))
    first = _trial(engine, engine.modes[0], 1, model)
    stops = _settled(engine, _with(first, epochs=50, stop={"tol": 1e9, "patience": 1}))
    if stops.params["stop"]:
        found.append(Case("stops when the watch says so", stops, _check_stop))
    wild = _settled(engine, _with(first, learning_rate=WILD, epochs=5))
    if wild.params["learning_rate"] == WILD:
        found.append(Case("says when it diverges", wild, _check_divergence))
    return list({json.dumps(case.trial.identity(), sort_keys=True): case for case in reversed(found)}.values())[::-1]


def _settled(engine: Engine, trial: Trial) -> Trial:
    """Return the trial as the engine will run it."""
    values = engine.settle({**trial.params, "mode": trial.mode, "workers": trial.workers})
    mode, workers = values.pop("mode"), values.pop("workers")
    return replace(trial, params=values, mode=mode, workers=workers)


def _equivalence_trials(engine: Engine) -> Iterator[tuple[str, Trial]]:
    modes = [(mode, workers) for mode in engine.modes for workers in ((1,) if mode == "single" else (1, 2))]
    for number, (mode, workers) in enumerate(modes):
        suffix = "" if engine.modes == ("single",) else f", {mode} with {workers} workers"
        for kind, family in FAMILIES.items():
            if kind in engine.models:
                for what, changes in family.contract_cases(thorough=number == 0):  # all cases in one mode are enough
                    yield f"{kind}: {what}{suffix}", _with(_trial(engine, mode, workers, kind), **changes)


def _trial(engine: Engine, mode: str, workers: int, model: str) -> Trial:
    family = FAMILIES[model]
    params = {**BASE, **family.example, **{name: knob.default for name, knob in engine.knobs.items()}}
    dataset, limits = family.example_data, Limits(timeout_s=120, stall_s=60)
    place = mode, workers, 1.0, None, "processes"
    return Trial("check", engine.name, f"{dataset}-{model}", *place, params, 1, (), limits, data=dataset, model=model)


def _with(trial: Trial, **changes: Any) -> Trial:
    return replace(trial, params={**trial.params, **changes})


def _check_equivalence(record: Record) -> str | None:
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if record.orphans:
        return f"left {record.orphans} processes behind"
    if record.equivalence["verdict"] == "different by design":
        return None
    if record.samples_seen != ROWS * record.params["epochs"]:
        return f"saw {record.samples_seen} samples instead of {ROWS * record.params['epochs']}"
    if record.equivalence["verdict"] in ("exact", "within tolerance"):
        return None
    return f"no certificate: {record.equivalence['reason']}"


def _check_stop(record: Record) -> str | None:
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    seen = (record.samples_seen or 0) / ROWS
    return None if seen <= 5 else f"trained {seen:.0f} epochs although it should have stopped after 3"


def _check_divergence(record: Record) -> str | None:
    return None if record.status == "diverged" else f"ended as {record.status} with a learning rate of 1e30"


def check(engine: Engine, store: Store, view: RunObserver) -> Iterator[TestFinding]:
    """Run every contract test as a real trial, and yield each finding."""
    tests = cases(engine)
    for dataset in dict.fromkeys(case.trial.data for case in tests):
        data.get(dataset)
    runner = Runner(store, view)
    for case in tests:
        refused = check_preconditions(case.trial, engine)
        if refused and refused.status == "unsupported":
            yield TestFinding(case.name, None, f"refused: {refused.reason}")
            continue
        task = Task(case.trial, engine, case.trial.id(engine.version()))
        runner.run([task])
        if task.record is None or task.record.status == "interrupted":
            raise KeyboardInterrupt
        yield TestFinding(case.name, case.check(task.record), _note(task.record), task.record.traceback)


def _note(record: Record) -> str:
    verdict, distance = record.equivalence.get("verdict"), record.equivalence.get("max_rel_diff")
    if verdict == "different by design":
        return f"{verdict}: {record.equivalence['reason']}"
    return f"{verdict} ({distance:.1e})" if record.status == "ok" and distance is not None else record.reason or ""
