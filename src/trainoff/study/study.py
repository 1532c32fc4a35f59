"""A study: a set of trials, and the order in which they run."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainoff.study.grid import Layers, combinations, settings
from trainoff.study.schema import EngineFacts
from trainoff.study.trial import Limits, Trial, derive
from trainoff.study.workloads import Workload

_NOT_PARAMS = (
    "workload",
    "mode",
    "workers",
    "cores",
    "memory_gb",
    "kind",
    "seed",
    "settled",
    "usd_per_hour",
)  # a trial has fields for them


@dataclass(frozen=True)
class Study:
    """What a study file says, checked. `trials()` lists what will run, in that order."""

    name: str
    path: Path
    engines: tuple[EngineFacts, ...]
    workloads: Mapping[str, Workload]  # all that the study may name, with the targets that hold here
    repeat: int
    limits: Limits
    layers: Layers

    def trials(self) -> list[Trial]:
        """The trials in the order they run: repetition by repetition, each shuffled so that drift is fair."""
        once = list(self.settings())
        seen: set[str] = set()
        ordered: list[Trial] = []
        for repetition in range(1, self.repeat + 1):
            fresh = []
            for engine, values in once:
                trial = self._trial(engine, values, repetition)
                identity = json.dumps(trial.identity(), sort_keys=True, default=str)
                if identity not in seen:
                    seen.add(identity)
                    fresh.append(trial)
            random.Random(derive("trial order", self.name, repetition)).shuffle(fresh)
            ordered += [dataclasses.replace(trial, position=place) for place, trial in enumerate(fresh)]
        return ordered

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each engine with every set of values that it is to run with, in the order of the file."""
        for engine in self.engines:
            for combination in combinations(engine, self.layers):
                yield engine.name, settings(engine, self.layers, combination, self.workloads)

    def _trial(self, engine: str, values: Mapping[str, Any], repetition: int) -> Trial:
        workload = self.workloads[values["workload"]]
        return Trial(
            study=self.name,
            engine=engine,
            workload=workload.name,
            mode=values["mode"],
            workers=values["workers"],
            cores=values["cores"],
            memory_gb=values["memory_gb"],
            cluster=values["kind"],
            settled=tuple(values["settled"]),
            params={key: value for key, value in values.items() if key not in _NOT_PARAMS},
            seed=values["seed"] + repetition,
            targets=workload.targets,
            limits=self.limits,
            repetition=repetition,
            data=workload.data,
            model=workload.model,
            metric=workload.metric,
            usd_per_hour=values["usd_per_hour"],
        )
