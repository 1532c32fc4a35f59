"""A study, its trials, and the order in which they run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainoff.study.grid import ValueLayers, combinations, settings
from trainoff.study.keys import ADDRESSES
from trainoff.study.schema import EngineFacts
from trainoff.study.workloads import Workload

_TRIAL_FIELDS = (
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
    """A checked study file; `trials()` returns the trials in the order they run."""

    name: str
    path: Path
    engines: tuple[EngineFacts, ...]
    workloads: Mapping[str, Workload]  # every one that the study may name, with its targets
    repeat: int
    limits: Limits
    layers: ValueLayers

    def trials(self) -> list[Trial]:
        """Return the trials in the order they run: by repetition, each one shuffled against drift."""
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
            ordered += [dataclasses.replace(trial, position=index) for index, trial in enumerate(fresh)]
        return ordered

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each engine with the values of each of its trials, in the order of the file."""
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
            params={key: value for key, value in values.items() if key not in _TRIAL_FIELDS},
            seed=values["seed"] + repetition,
            targets=workload.targets,
            limits=self.limits,
            repetition=repetition,
            data=workload.data,
            model=workload.model,
            metric=workload.metric,
            usd_per_hour=values["usd_per_hour"],
        )


@dataclass(frozen=True)
class Limits:
    """The limits after which the runner ends a trial."""

    timeout_s: float = 900.0  # the whole trial
    stall_s: float = 120.0  # without progress while training


@dataclass(frozen=True)
class Trial:
    """What to train on which data with which parameters: everything that decides the result.

    `params` has every hyper-parameter and knob, resolved from grid, study, recipe and defaults; its `batch_size` is
    that of all workers together.
    """

    study: str
    engine: str
    workload: str
    mode: str
    workers: int
    cores: float
    memory_gb: float | None
    cluster: str
    params: Mapping[str, Any]
    seed: int
    targets: tuple[float, ...] = ()
    limits: Limits = field(default_factory=Limits)
    repetition: int = 1
    position: int = 0  # its place in the random order of its repetition
    data: str = ""  # a dataset's name or the path of the user's own; its hash is part of the id, its path is not
    model: str = ""  # the name of its family
    metric: str = "accuracy"
    settled: tuple[str, ...] = ()  # parameters that the engine has fixed, whatever the study says
    usd_per_hour: float | None = None  # the price of all its nodes, if their machines have prices

    def identity(self) -> dict[str, Any]:
        """Return what decides the result; the study's name, targets, limits, order and prices do not."""
        found = {key: getattr(self, key) for key in _IDENTITY}
        return {**found, "params": {key: self.params[key] for key in self.params if key not in _CONNECTION_KEYS}}

    def id(self, *versions: str) -> str:
        """Return a short hash of the trial, the engine's version, the adapter's source and the data."""
        text = json.dumps([self.identity(), *versions], sort_keys=True, default=str)
        return f"{self.engine}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def attached(self) -> bool:
        """Whether it runs on an existing cluster."""
        return self.cluster == "attach"

    @property
    def emulated(self) -> bool:
        """Whether it runs on emulated nodes."""
        return self.cluster == "lab"

    @property
    def remote(self) -> bool:
        """Whether its workers run on other machines, and not in a private network of this one."""
        return self.cluster in ("attach", "hosts")

    @property
    def address(self) -> str:
        """The address of the existing cluster."""
        return str(next(self.params[key] for key, _ in ADDRESSES.values() if key in self.params))

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that the study gives to the cluster software."""
        return next((self.params[software] for software in ADDRESSES if self.params.get(software)), {})

    def public_params(self) -> dict[str, Any]:
        """Return the parameters without secrets in a cluster's properties and addresses."""
        properties = self.params.get("spark", {})
        secrets = {name: "(hidden)" for name in properties if _SECRET.search(name)}
        public = {**self.params, "spark": {**properties, **secrets}} if secrets else self.params
        return {
            name: CREDENTIALS.sub("://(hidden)@", value) if isinstance(value, str) else value
            for name, value in public.items()
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Trial:
        limits = Limits(**value["limits"])
        tuples = {name: tuple(value[name]) for name in ("targets", "settled")}
        return Trial(**{**value, **tuples, "limits": limits})


_SECRET = re.compile("secret|password|token|credential|access.?key", re.IGNORECASE)
CREDENTIALS = re.compile(r"://[^@]*:[^@]*@")  # user and password in an address
_IDENTITY = ("engine", "workload", "mode", "workers", "cores", "memory_gb", "cluster", "params", "seed")
_CONNECTION_KEYS = ("here", "ssh_config")  # they do not decide the result


def derive(*parts: object) -> int:
    """Return a 63-bit seed for a purpose: `derive("order", "mnist", seed, epoch)` is the same for all engines."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
