"""One engine's lane: the study with nothing in it but this engine in one setting, on validation rows."""

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
    """Makes the trials of one engine: of the recipe, of candidates, with this seed or that."""

    study: Study  # one engine, one setting, validation rows
    engine: Engine
    fixed: frozenset[str]  # keys that are not tuned: swept by the study, or set on the command line

    @property
    def name(self) -> str:
        return self.engine.name

    def trial(self, candidate: Candidate, race: tuple[int, int] | None = None) -> Trial:
        """A candidate's trial: that of the search, or a round of a race with a seed of its own."""
        layers = self.study.layers
        own = {**layers.by_engine.get(self.name, {}), **candidate}
        changed = replace(self.study, layers=replace(layers, by_engine={**layers.by_engine, self.name: own}))
        (trial,) = changed.trials()
        if race is None:
            return trial
        number, seed = race
        return replace(trial, seed=trial.seed + seed, repetition=1 + number)

    @cached_property
    def recipe(self) -> Trial:
        """The trial of the shipped recipe, as the study has it."""
        return self.trial({})

    @cached_property
    def _versions(self) -> tuple[str, str, str]:
        return engines.version_of(self.engine), engines.source_hash(self.engine), data.identity(self.recipe.data)

    def task(self, trial: Trial, store: Store) -> Task:
        """The trial with the record that there is of it already."""
        trial_id = trial.id(*self._versions)
        record = store.latest(trial_id)
        return Task(trial, self.engine, trial_id, record, again=record is not None and record.unfinished)

    def asked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What the keys of a trial said in the study file: there a batch may be that of one worker."""
        return {**params, "batch_size": params["batch_size"] // self._batches}

    @cached_property
    def _batches(self) -> int:
        sampler = 64 * self.recipe.workers
        made: int = self.trial({"batch_size": sampler}).params["batch_size"]
        return made // sampler if made in (sampler, sampler * self.recipe.workers) else 1

    @cached_property
    def space(self) -> Space:
        """What may be changed."""
        rows = len(data.load(self.recipe.data).y_train)
        rows = min(rows, self.recipe.params.get("train_rows") or rows)
        return space_of(self.engine, self.recipe, self.asked(self.recipe.params), rows, self._matters)

    def _matters(self, key: str, value: Any) -> bool:
        if key in self.fixed:
            return False
        return _told(self.trial({key: value})) != _told(self.recipe)

    def candidate(self, record: Record) -> Candidate | None:
        """The candidate whose search left a record behind; None if it is of something else, or of another version."""
        if record.engine != self.name or record.unfinished:
            return None
        values = self.asked(record.params)
        if self.space.points(values) is None:
            return None
        candidate = self.space.changes({each.key: values[each.key] for each in self.space.active(values)})
        return candidate if self.trial(candidate).id(*self._versions) == record.trial_id else None


def engine_studies_of(study: Study) -> list[EngineStudy]:
    """A lane for each engine of a study. Where the study sweeps something, its first value is taken."""
    if len(workloads := _workloads(study)) > 1:
        raise TrainoffError(
            f"the study sweeps `workload`, and an engine can be tuned for one at a time; choose with "
            f"--set workload={workloads[0]}"
        )
    return [_engine_study(study, place) for place in range(len(study.engines))]


def _workloads(study: Study) -> list[str]:
    return list(dict.fromkeys(trial.workload for trial in study.trials()))


def _engine_study(study: Study, place: int) -> EngineStudy:
    facts, layers = study.engines[place], study.layers
    first = next(iter(combinations(facts, layers)))
    swept_keys = {*swept(facts, layers), *(key for case in cases_of(facts, layers) for key in case)}
    fixed = {*swept_keys, *layers.overrides, *layers.engine_overrides.get(facts.name, {})}
    alone = replace(layers, grid={}, cases=[{}], overrides={**first, **layers.overrides})
    made = replace(study, name=f"{study.name}-tune", engines=(facts,), repeat=1, layers=alone)
    return EngineStudy(_on_validation(made), engines.broken_or(facts.name), frozenset(fixed))


def _on_validation(study: Study) -> Study:
    """The study on validation rows, of which there are fewer."""
    (trial,) = study.trials()
    workload = study.workloads[trial.workload]
    changed = replace(workload, data=data.validation_of(workload.data))
    return replace(study, workloads={**study.workloads, workload.name: changed})


def with_rows(engine_study: EngineStudy) -> EngineStudy:
    """The lane with as many rows to train on as there are, where the study asks for more."""
    rows = len(data.load(engine_study.recipe.data).y_train)
    asked = engine_study.recipe.params.get("train_rows")
    if not asked or asked <= rows:
        return engine_study
    layers = engine_study.study.layers
    fewer = replace(layers, overrides={**layers.overrides, "train_rows": rows})
    return replace(engine_study, study=replace(engine_study.study, layers=fewer))


def _told(trial: Trial) -> str:
    return json.dumps(trial.identity(), sort_keys=True, default=str)
