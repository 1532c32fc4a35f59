"""Workloads: a dataset, a model to train on it, and the recipe that trains it well."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainoff.study.check import check
from trainoff.study.keys import PARAMS

_SHIPPED = Path(__file__).with_name("workloads.toml")


@dataclass(frozen=True)
class Workload:
    """What is trained on what. `data` is the name of a dataset or the path of the user's own."""

    name: str
    data: str
    about: str = ""
    model: str = "mlp"
    metric: str = "accuracy"
    targets: tuple[float, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    stale: Mapping[str, Any] = field(default_factory=dict)  # what is different in the recipe of the mode async


def workloads() -> dict[str, Workload]:
    """The workloads that ship with trainoff, by name."""
    with _SHIPPED.open("rb") as file:
        tables = tomllib.load(file)
    return {name: _workload(name, table) for name, table in tables.items()}


def _workload(name: str, table: Mapping[str, Any]) -> Workload:
    recipes = {
        part: {key: check(PARAMS[key], value) for key, value in table[part].items()}
        for part in ("recipe", "stale")
        if part in table
    }
    return Workload(name, **{**table, "targets": tuple(table["targets"]), **recipes})
