"""The study reduced to one engine in one setting, on validation rows; makes the trials of its search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainoff import data, engines
from trainoff.engines import Engine
from trainoff.errors import TrainoffError
from trainoff.records import Record, Store
from trainoff.runner.runner import Task
from trainoff.study import Study, Trial
from trainoff.study.grid import cases_of, combinations, swept
from trainoff.tuning.search import Candidate, Space, space_of


@dataclass(frozen=True)
class EngineStudy:
    """Makes the trials of one engine: of the recipe and of candidates, with any seed."""

    study: Study  # one engine, one setting, validation rows
    engine: Engine
    fixed: frozenset[str]  # keys that are not tuned: swept by the study, or set on the command line

    @property
    def name(self) -> str:
        return self.engine.name

    def trial(self, candidate: Candidate, rerun: tuple[int, int] | None = None) -> Trial:
        """Return a candidate's trial: that of the search, or a rerun given by its number and an added seed."""
        layers = self.study.layers
        values = {**layers.by_engine.get(self.name, {}), **candidate}
        changed = replace(self.study, layers=replace(layers, by_engine={**layers.by_engine, self.name: values}))
        (trial,) = changed.trials()
        if rerun is None:
            return trial
        number, seed = rerun
        return replace(trial, seed=trial.seed + seed, repetition=1 + number)

    @cached_property
    def recipe(self) -> Trial:
        """The trial of the study's own values."""
        return self.trial({})

    @cached_property
    def _versions(self) -> tuple[str, str, str]:
        return engines.version_of(self.engine), engines.source_hash(self.engine), data.identity(self.recipe.data)

    def task(self, trial: Trial, store: Store) -> Task:
        """Return the trial as a task, with its record if the store has one."""
        trial_id = trial.id(*self._versions)
        record = store.latest(trial_id)
        return Task(trial, self.engine, trial_id, record, rerun=record is not None and record.unfinished)

    def study_values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's parameters as the study file writes them, where a batch may be that of one worker."""
        return {**params, "batch_size": params["batch_size"] // self._batches}

    @cached_property
    def _batches(self) -> int:
        """The number of worker batches in a global batch, if the study gives the batch of one worker."""
        batch = 64 * self.recipe.workers
        settled: int = self.trial({"batch_size": batch}).params["batch_size"]
        return settled // batch if settled in (batch, batch * self.recipe.workers) else 1

    @cached_property
    def space(self) -> Space:
        """The search space."""
        rows = len(data.load(self.recipe.data).y_train)
        rows = min(rows, self.recipe.params.get("train_rows") or rows)
        return space_of(self.engine, self.recipe, self.study_values(self.recipe.params), rows, self._has_effect)

    def _has_effect(self, key: str, value: Any) -> bool:
        """Tell whether a value of a key makes another trial than the recipe; a fixed key has no effect."""
        return key not in self.fixed and _identity(self.trial({key: value})) != _identity(self.recipe)

    def candidate(self, record: Record) -> Candidate | None:
        """Return the candidate of a record; None if it was not searched here, or with another version."""
        if record.engine != self.name or record.unfinished:
            return None
        values = self.study_values(record.params)
        if self.space.points(values) is None:
            return None
        candidate = self.space.changes({each.key: values[each.key] for each in self.space.active(values)})
        return candidate if self.trial(candidate).id(*self._versions) == record.trial_id else None


def engine_studies_of(study: Study) -> list[EngineStudy]:
    """Return a study for each engine; of a swept key it has the first value."""
    workloads = list(dict.fromkeys(trial.workload for trial in study.trials()))
    if len(workloads) > 1:
        raise TrainoffError(
            f"the study sweeps `workload`, and an engine is tuned for one at a time; choose with "
            f"--set workload={workloads[0]}"
        )
    return [_engine_study(study, index) for index in range(len(study.engines))]


def _engine_study(study: Study, index: int) -> EngineStudy:
    facts, layers = study.engines[index], study.layers
    first = next(iter(combinations(facts, layers)))
    swept_keys = {*swept(facts, layers), *(key for case in cases_of(facts, layers) for key in case)}
    fixed = {*swept_keys, *layers.overrides, *layers.engine_overrides.get(facts.name, {})}
    single = replace(layers, grid={}, cases=[{}], overrides={**first, **layers.overrides})
    reduced = replace(study, name=f"{study.name}-tune", engines=(facts,), repeat=1, layers=single)
    (trial,) = reduced.trials()
    workload = study.workloads[trial.workload]
    on_validation = replace(workload, data=data.validation_of(workload.data))
    reduced = replace(reduced, workloads={**study.workloads, workload.name: on_validation})
    return EngineStudy(reduced, engines.broken_or(facts.name), frozenset(fixed))


def limit_rows(engine_study: EngineStudy) -> EngineStudy:
    """Cut `train_rows` to the number of rows that the validation dataset has."""
    rows = len(data.load(engine_study.recipe.data).y_train)
    requested = engine_study.recipe.params.get("train_rows")
    if not requested or requested <= rows:
        return engine_study
    layers = engine_study.study.layers
    fewer = replace(layers, overrides={**layers.overrides, "train_rows": rows})
    return replace(engine_study, study=replace(engine_study.study, layers=fewer))


def _identity(trial: Trial) -> str:
    return json.dumps(trial.identity(), sort_keys=True, default=str)
