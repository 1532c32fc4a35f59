"""The workloads of a study: the shipped ones, changed by [workload.NAME], and those of the user."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainoff.study.keys import TOP, WORKLOAD, StudySchema, checked, read_table, table
from trainoff.study.schema import show
from trainoff.study.source import Source
from trainoff.study.suggestions import nearest, quote, suggest

_OTHER_DATASETS = {"open-bandit"}  # no shipped workload uses them


def declared(source: Source) -> list[str]:
    """Return the names of the [workload.NAME] tables; none if `workload` is a name."""
    value = source.tables.get("workload")
    return list(table(source, "workload")) if isinstance(value, dict) else []


def read_workloads(source: Source, schema: StudySchema) -> tuple[dict[str, Workload], dict[str, dict[str, Any]]]:
    """Return every workload that the study may name, and the parameters of the [workload.NAME] tables."""
    every = workloads()
    shipped = dict(every)
    params = {}
    for name in declared(source):
        if name in shipped:
            every[name], params[name] = _changed(source, schema, shipped[name])
        else:
            every[name], params[name] = _new(source, schema, name, shipped)
    return every, params


def choose(source: Source, every: Mapping[str, Workload], otherwise: bool) -> str | None:
    """Return the workload of the study; None if it is chosen `otherwise`, by the grid or the command line."""
    name = source.tables.get("workload")
    if isinstance(name, str):
        if name not in every:
            raise source.error_at("workload")(f"{quote(name)} is not a workload; {suggest(name, every, 'they are')}")
        return name
    if name is not None and not isinstance(name, dict):
        raise source.error_at("workload")(f"`workload` is {show(name)}; expected the name of a workload")
    tables = declared(source)
    if otherwise or len(tables) == 1:
        return None if otherwise else tables[0]
    if tables:
        names = ", ".join(f'"{each}"' for each in tables)
        raise source.error_at("workload")(f"there are several workloads; choose in [grid], as in workload = [{names}]")
    raise source.error_at()(f"`workload` is missing; name one of {', '.join(every)}")


def _changed(source: Source, schema: StudySchema, workload: Workload) -> tuple[Workload, dict[str, Any]]:
    for key in WORKLOAD:
        if key in table(source, "workload", workload.name):
            raise source.error_at("workload", workload.name, key)(
                f"{quote(key)} of {quote(workload.name)} cannot be changed, because that workload ships with "
                "trainoff; give yours another name"
            )
    allowed = {**schema.params(), "targets": [TOP["targets"]]}
    values = read_table(source, schema, allowed, "workload", workload.name)
    targets = values.pop("targets", workload.targets)
    return replace(workload, targets=tuple(targets)), values


def _new(
    source: Source, schema: StudySchema, name: str, shipped: Mapping[str, Workload]
) -> tuple[Workload, dict[str, Any]]:
    make_error = source.error_at("workload", name)
    checked([replace(TOP["name"], name="workload")], name, make_error)
    if "data" not in table(source, "workload", name):
        close = nearest(name, shipped)
        hint = f"did you mean {quote(close)}?" if close else "a new one needs `data`, the path of its rows"
        raise make_error(f"{quote(name)} does not ship with trainoff; {hint}")
    values = read_table(source, schema, schema.of_workload(), "workload", name)
    model = values.pop("model", next(iter(schema.installed.models)))
    facts = {key: values.pop(key) for key in ("about", "metric") if key in values}
    data = _data(source, name, values.pop("data"), {each.data for each in shipped.values()} | _OTHER_DATASETS)
    targets = tuple(values.pop("targets", ()))
    recipe = {key: value for key, value in values.items() if key in schema.common}
    return Workload(name, data, model, targets=targets, recipe=recipe, **facts), values


def _data(source: Source, name: str, data: str, datasets: set[str]) -> str:
    """Return the name of a dataset, or a path made absolute from the study file's folder.

    Options may follow a colon, as in "clicks:rows=1000000"; they are not checked here.
    """
    if data.partition(":")[0] in datasets:
        return data
    file, colon, options = data.rpartition(":") if "=" in data.rpartition(":")[2] else (data, "", "")
    for given, end in ((data, ""), (file, colon + options)):
        path = os.path.abspath(source.path.parent / given)  # noqa: PTH100  # resolve() would follow links
        if given and os.path.exists(path):  # noqa: PTH110  # Path.exists raises for names that are too long
            return path + end
    hint = suggest(data, sorted(datasets), "give a path from the study file's folder, or one of")
    raise source.error_at("workload", name, "data")(f"`data` is {show(data)}, which does not exist; {hint}")


_SHIPPED = Path(__file__).with_name("workloads.toml")


@dataclass(frozen=True)
class Workload:
    """A model with the data to train it on: the name of a dataset, or the path of the user's data."""

    name: str
    data: str
    model: str  # the name of a family
    about: str = ""
    metric: str = "accuracy"
    targets: tuple[float, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    stale: Mapping[str, Any] = field(default_factory=dict)  # what differs in the recipe of the mode async


def workloads() -> dict[str, Workload]:
    """Return the workloads that ship with trainoff, by name."""
    with _SHIPPED.open("rb") as file:
        tables = tomllib.load(file)
    return {name: Workload(name, **{**table, "targets": tuple(table["targets"])}) for name, table in tables.items()}
