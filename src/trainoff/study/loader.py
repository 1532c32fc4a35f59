"""Reads and checks a study file; a mistake is an error of one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study import keys, validation
from trainoff.study.grid import ValueLayers
from trainoff.study.machines import read_machines
from trainoff.study.schema import EngineFacts, Installed, show
from trainoff.study.source import Source
from trainoff.study.study import Limits, Study
from trainoff.study.suggestions import clean, quote, suggest
from trainoff.study.workloads import Workload, choose, read_workloads

_TABLES = ("params", "fault", "grid", "case", "engine", "cluster", "machine", "limits")  # or `workload`, also a name


def read(
    path: Path | str,
    installed: Installed,
    *,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    repeat: int | None = None,
) -> Study:
    """Read a study file with the overrides of the command line: --set, --engine (`only`) and --repeat.

    Every mistake is a TrainoffError that names the file and the line.
    """
    source = Source(Path(path))
    schema = keys.StudySchema(_engines(source, installed), installed)
    _check_top(source, schema)
    workloads, by_workload = read_workloads(source, schema)
    asked = validation.read_overrides(overrides, schema, workloads)
    layers = _layers(source, schema, workloads, by_workload, asked)
    study = Study(
        name=_name(source, asked),
        path=source.path,
        engines=_chosen(schema.engines, only),
        workloads=_with_targets(source, workloads, asked),
        repeat=_repeat(source, asked, repeat),
        limits=Limits(**{**keys.read_table(source, schema, keys.only(keys.LIMITS), "limits"), **asked.limits}),
        layers=layers,
    )
    validation.check_lab(study, source)
    validation.check_size(study, source)
    validation.check_hosts(study, source)
    validation.check_batches(study, source)
    validation.check_attached(study, source)
    return study


def _engines(source: Source, installed: Installed) -> list[EngineFacts]:
    known = installed.engines
    if "engines" not in source.tables:
        _check_top(source, keys.StudySchema([], installed))  # a misspelt `engines` is not a missing one
        if not isinstance(one := source.tables.get("engine", {}), dict):
            raise source.error_at("engine")(
                f'`engine` is {show(one)}; did you mean `engines`, as in engines = ["numpy"]?'
            )
        raise source.error_at()('`engines` is missing; name at least one, as in engines = ["numpy"]')
    names = source.tables["engines"]
    if names == []:
        raise source.error_at("engines")(f"`engines` is an empty list; name at least one of {', '.join(known)}")
    names = keys.checked([keys.TOP["engines"]], names, source.error_at("engines"))
    for index, name in enumerate(names):
        make_error = source.error_at("engines", index)
        if name not in known:
            raise make_error(f"{quote(name)} is not an engine; {suggest(name, known, 'the engines are')}")
        if name in names[:index]:
            raise make_error(f"{quote(name)} is among the engines twice; keep one")
    return [known[name] for name in names]


def _check_top(source: Source, schema: keys.StudySchema) -> None:
    for name in source.tables:
        if name not in keys.TOP and name not in _TABLES:
            raise source.error_at(name)(schema.unknown(name, "a study key", [*keys.TOP, *_TABLES]))


def _layers(
    source: Source,
    schema: keys.StudySchema,
    workloads: Mapping[str, Workload],
    by_workload: Mapping[str, Mapping[str, Any]],
    asked: validation.Overrides,
) -> ValueLayers:
    sweepable = schema.sweepable(workloads)
    grid = keys.read_grid(source, schema, sweepable)
    cases = keys.read_cases(source, schema, sweepable)
    base = {
        **keys.read_table(source, schema, schema.params(), "params"),
        **_fault(source),
        **keys.read_table(source, schema, keys.only(keys.CLUSTER), "cluster"),
    }
    if "ssh_config" in base:  # a path from the file's folder
        base["ssh_config"] = str((source.path.parent / Path(base["ssh_config"]).expanduser()).absolute())
    otherwise = "workload" in grid or "workload" in asked.values or all("workload" in case for case in cases)
    workload = choose(source, workloads, otherwise)
    if workload is not None:
        base["workload"] = workload
    by_engine = {name: _engine_table(source, schema, name) for name in keys.table(source, "engine")}
    machines = read_machines(source, schema)
    models = schema.installed.models
    return ValueLayers(models, base, by_workload, by_engine, grid, cases, asked.values, machines, asked.by_engine)


def _fault(source: Source) -> dict[str, Any]:
    """Read [fault], which is the same as `fault` in [params]."""
    if "fault" not in source.tables:
        return {}
    if "fault" in keys.table(source, "params"):
        raise source.error_at("fault")("there is a [fault] and a `fault` in [params]; keep one")
    return {"fault": keys.checked([keys.FAULT], source.tables["fault"], source.error_at("fault"))}


def _engine_table(source: Source, schema: keys.StudySchema, name: str) -> dict[str, Any]:
    if name not in schema.installed.engines:
        hint = suggest(name, schema.installed.engines, "the engines are")
        raise source.error_at("engine", name)(f"{quote(name)} is not an engine; {hint}")
    return keys.read_table(source, schema, schema.of_engine(schema.installed.engines[name]), "engine", name)


def _with_targets(
    source: Source, workloads: Mapping[str, Workload], asked: validation.Overrides
) -> dict[str, Workload]:
    """Return the workloads with their targets: of --set, else [workload.NAME], the study or the recipe."""
    found: dict[str, tuple[float, ...]] = {}
    if "targets" in source.tables:
        common = keys.checked([keys.TOP["targets"]], source.tables["targets"], source.error_at("targets"))
        described = source.tables.get("workload")
        tables = described if isinstance(described, dict) else {}
        found = {name: common for name in workloads if "targets" not in tables.get(name, {})}
    if "targets" in asked.top:
        found = dict.fromkeys(workloads, asked.top["targets"])
    return {
        name: replace(workload, targets=tuple(sorted(set(found.get(name, workload.targets)))))
        for name, workload in workloads.items()
    }


def _repeat(source: Source, asked: validation.Overrides, repeat: int | None) -> int:
    def make_error(message: str) -> TrainoffError:
        return TrainoffError(f"--repeat {repeat}: {message}")

    number = keys.checked([keys.TOP["repeat"]], source.tables.get("repeat", 1), source.error_at("repeat"))
    number = asked.top.get("repeat", number)
    return int(number if repeat is None else keys.checked([keys.TOP["repeat"]], repeat, make_error))


def _name(source: Source, asked: validation.Overrides) -> str:
    if "name" in asked.top:
        return str(asked.top["name"])
    given = source.tables.get("name", source.path.stem)
    hint = "" if "name" in source.tables else '; write one into the file, as in name = "quick"'
    return str(keys.checked([keys.TOP["name"]], given, source.error_at("name"), hint))


def _chosen(engines: Sequence[EngineFacts], names: Sequence[str]) -> tuple[EngineFacts, ...]:
    known = [engine.name for engine in engines]
    for name in names:
        if name not in known:
            hint = suggest(name, known, "they are")
            raise TrainoffError(f"--engine {clean(name)}: it is not among the study's engines; {hint}")
    return tuple(engine for engine in engines if not names or engine.name in names)
