"""Grid expansion: the combinations of values of a study, and the resolved values of each trial."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainoff.study.keys import CLUSTER, HOST_KEYS, PARAMS, SOFTWARE_KEYS, params_of
from trainoff.study.machines import price_of, settle_nodes
from trainoff.study.schema import EngineFacts, ModelFacts
from trainoff.study.workloads import Workload

Values = Mapping[str, Any]
MOST_TRIALS = 10_000
WORKERS_KEYS = ("workers", "nodes", "fault")  # without effect on an engine that has a single worker
WHOLE_BATCHES = ("async", "model-parallel")  # modes in which a batch is not divided among workers


@dataclass(frozen=True)
class ValueLayers:
    """The values that a study gives to its keys, by where they are written."""

    models: Mapping[str, ModelFacts]  # all families
    base: Values = field(default_factory=dict)  # [params], [cluster] and the choice of the workload
    by_workload: Mapping[str, Values] = field(default_factory=dict)  # [workload.NAME]
    by_engine: Mapping[str, Values] = field(default_factory=dict)  # [engine.NAME]
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # [grid]
    cases: Sequence[Values] = field(default_factory=lambda: [{}])  # [[case]]; multiplied with the grid
    overrides: Values = field(default_factory=dict)  # --set key=value
    machines: Mapping[str, Values] = field(default_factory=dict)  # by their names
    engine_overrides: Mapping[str, Values] = field(default_factory=dict)  # --set engine.NAME.key=value

    @cached_property
    def defaults(self) -> dict[str, Values]:
        """Return the defaults of all keys for each family of models."""
        keys = {name: (*params_of([model]).values(), *CLUSTER.values()) for name, model in self.models.items()}
        return {name: {key.name: key.default for key in keys[name]} for name in keys}

    @cached_property
    def model_keys(self) -> frozenset[str]:
        """Return the keys that some family of models has."""
        return frozenset(key.name for model in self.models.values() for key in model.keys)


def knows(engine: EngineFacts, layers: ValueLayers, key: str) -> bool:
    """Tell whether an engine has a key; those of workers have no effect on a single-node engine."""
    if key in WORKERS_KEYS or key in HOST_KEYS:
        return engine.distributed
    if key in SOFTWARE_KEYS:
        return engine.cluster == SOFTWARE_KEYS[key]
    return key in PARAMS or key in CLUSTER or key == "workload" or key in layers.model_keys or key in engine.knobs


def swept(engine: EngineFacts, layers: ValueLayers) -> dict[str, Sequence[Any]]:
    """Return the part of the grid that multiplies an engine's trials."""
    fixed = {**layers.overrides, **layers.engine_overrides.get(engine.name, {})}
    return {key: values for key, values in layers.grid.items() if knows(engine, layers, key) and key not in fixed}


def cases_of(engine: EngineFacts, layers: ValueLayers) -> list[Values]:
    """Return the cases that differ for an engine, each with the keys that it has."""
    fixed = {**layers.overrides, **layers.engine_overrides.get(engine.name, {})}
    known = [
        {key: value for key, value in case.items() if knows(engine, layers, key) and key not in fixed}
        for case in layers.cases
    ]
    return list({json.dumps(case, sort_keys=True): case for case in known}.values())


def count(engine: EngineFacts, layers: ValueLayers) -> int:
    """Count the combinations of an engine without making them."""
    return len(cases_of(engine, layers)) * math.prod(len(values) for values in swept(engine, layers).values())


def combinations(engine: EngineFacts, layers: ValueLayers) -> Iterator[dict[str, Any]]:
    """Yield every combination of case and grid values for an engine."""
    grid = swept(engine, layers)
    for case in cases_of(engine, layers):
        for values in itertools.product(*grid.values()):
            yield {**case, **dict(zip(grid, values, strict=True))}


def settings(
    engine: EngineFacts, layers: ValueLayers, combination: Values, workloads: Mapping[str, Workload]
) -> dict[str, Any]:
    """Return every value of one trial, resolved from the defaults up to the overrides of the command line."""
    workload = {**layers.base, **combination, **layers.overrides}["workload"]
    given: list[Values] = [
        layers.base,
        layers.by_workload.get(workload, {}),
        layers.by_engine.get(engine.name, {}),
        combination,
        layers.overrides,
        layers.engine_overrides.get(engine.name, {}),
    ]
    chosen = {key: value for layer in given for key, value in layer.items()}
    if chosen.get("kind") == "hosts":
        chosen.setdefault("workers", len(chosen.get("hosts", [1])))
        given = [{"workers": chosen["workers"]}, *given]
    mode, _ = _mode_and_workers(engine, chosen.get("mode"), _workers(chosen))
    model = layers.models[workloads[workload].model]
    stack: list[Values] = [
        layers.defaults[workloads[workload].model],
        {name: knob.default for name, knob in engine.knobs.items()},
        model.defaults,
        workloads[workload].recipe,
        workloads[workload].stale if mode == "async" else {},
        *given,
    ]
    merged = {key: value for layer in stack for key, value in layer.items() if knows(engine, layers, key)}
    unset = [key for key in ("fault", *SOFTWARE_KEYS, *HOST_KEYS) if merged.get(key) is None]
    foreign = layers.model_keys - {key.name for key in model.keys}
    for key in (*foreign, *unset):
        merged.pop(key, None)
    merged.setdefault("workers", 1)
    settle_nodes(merged, layers.machines, chosen)
    merged["mode"], merged["workers"] = _mode_and_workers(engine, merged["mode"], merged["workers"])
    merged["usd_per_hour"] = price_of(merged.get("usd_per_hour", [])[: merged["workers"]])
    _settle_cluster(engine, merged)
    if merged.pop("batch_per") == "worker" and merged["mode"] not in WHOLE_BATCHES:
        merged["batch_size"] *= merged["workers"]
    settled = engine.settle(dict(merged))
    return {**settled, "settled": sorted(key for key in settled if settled[key] != merged.get(key))}


def _workers(values: Values) -> int:
    """Return the number of workers, which a lab gives as nodes."""
    nodes = values.get("nodes") if values.get("kind") == "lab" else None
    workers: int = len(nodes) if isinstance(nodes, list) else nodes or values.get("workers", 1)
    return workers


def _settle_cluster(engine: EngineFacts, values: dict[str, Any]) -> None:
    """Use this machine for engines that cannot attach to a cluster or use hosts; else take a host for each worker."""
    if values["kind"] == "attach" and engine.cluster is None:
        values["kind"] = "processes"
    elif values["kind"] == "hosts" and (values["mode"] == "single" or not engine.distributed):
        values["kind"] = "processes"
        for key in HOST_KEYS:
            values.pop(key, None)
    elif "hosts" in values:
        values["hosts"] = values["hosts"][: values["workers"]]


def _mode_and_workers(engine: EngineFacts, mode: str | None, workers: int) -> tuple[str, int]:
    """Return the mode, by default the engine's first for so many workers; the mode `single` has one worker."""
    if mode is None:
        possible = [each for each in engine.modes if workers == 1 or each != "single"]
        mode = (possible or engine.modes)[0]
    return mode, 1 if mode == "single" else workers
