"""The tuned study as a file: what the study says, the winners in [engine.NAME], and above it how they were found."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainoff.errors import TrainoffError
from trainoff.study import CLUSTER, LIMITS, Study
from trainoff.tuning.results import TuningResult

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def default_path(path: Path) -> Path:
    """Where the tuned study goes: beside the study."""
    return path.with_name(f"{path.stem}-tuned.toml")


def check_path(path: Path, study: Path) -> None:
    """Never write over the study itself, nor where nothing can be written."""
    if path.exists() and path.samefile(study):
        raise TrainoffError(f"{path}: that is the study itself; choose another file with -o")
    if path.is_dir() or not path.parent.is_dir():
        raise TrainoffError(f"{path}: no file can be written there; choose another with -o")


def check_overrides(study: Study) -> None:
    """Of a key that the study sweeps, a file cannot say that one engine alone has a value of its own."""
    layers = study.layers
    swept = {*layers.grid, *(key for case in layers.cases for key in case)} - layers.overrides.keys()
    for engine, values in layers.engine_overrides.items():
        for key in sorted(values.keys() & swept):
            raise TrainoffError(f"--set engine.{engine}.{key}: the study sweeps {key}; set it for all engines")


def write(study: Study, found: TuningResult, path: Path, machine: str) -> None:
    """Write the study with the winners; `machine` is where they won, in words."""
    tables = tuned_tables(study, found, path)
    text = "".join(f"{line}\n" for line in (*header(study, found, machine), "", *toml(tables)))
    try:
        path.write_text(text)
    except OSError as error:
        raise TrainoffError(f"{path}: it cannot be written ({error.strerror}); choose another file with -o") from error


def header(study: Study, found: TuningResult, machine: str) -> Iterator[str]:
    """Comments that say when, where and how the values below were found."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    yield f"# {study.path.name}, tuned by `trainoff tune` on {today}, on validation rows: no test row was looked at."
    yield f"# {machine}"
    if found.interrupted:
        yield "# It was stopped early: these are the best values by then. The same command goes on."
    for one in found.engines:
        yield f"# {one.sentence}"


def tuned_tables(study: Study, found: TuningResult, path: Path) -> dict[str, Any]:
    """The tables of the study file with what the command line has set, a name of its own and the winners."""
    tables: dict[str, Any] = tomllib.loads(study.path.read_text(encoding="utf-8-sig"))
    _apply_overrides(study, tables)
    tables["name"] = f"{study.name}-tuned"
    tables["engines"] = [engine.name for engine in study.engines]
    by_engine = tables.setdefault("engine", {})
    for one in found.engines:
        if one.winner:
            by_engine[one.engine] = {**by_engine.get(one.engine, {}), **one.winner}
    if not by_engine:
        del tables["engine"]
    if path.absolute().parent != study.path.absolute().parent:
        _settle_paths(study, tables)
    return tables


def _apply_overrides(study: Study, tables: dict[str, Any]) -> None:
    """What --set has changed stands in the file, and nowhere in it what it has overruled."""
    layers = study.layers
    for key, value in layers.overrides.items():
        for table in _tables_with_params(tables):
            table.pop(key, None)
        if value is None:
            continue
        if key == "workload":
            tables["workload"] = _workload(tables, value)
        else:
            tables.setdefault("cluster" if key in CLUSTER else "params", {})[key] = value
    for engine, values in layers.engine_overrides.items():
        own = tables.setdefault("engine", {}).setdefault(engine, {})
        own.update(values)
    targets = {name: list(workload.targets) for name, workload in study.workloads.items()}
    (used,) = {trial.workload for trial in study.trials()}
    tables["targets"] = targets[used]
    for described in tables["workload"].values() if isinstance(tables.get("workload"), dict) else ():
        described.pop("targets", None)
    tables["repeat"] = study.repeat
    limits = {key: value for key in LIMITS if (value := getattr(study.limits, key)) != LIMITS[key].default}
    if limits:
        tables["limits"] = limits
    for name in ("grid", "params", "cluster"):
        if tables.get(name) == {}:
            del tables[name]


def _workload(tables: Mapping[str, Any], name: str) -> Any:
    """The name, or where the file describes workloads, the description of this one."""
    described = tables.get("workload")
    return {name: described[name]} if isinstance(described, dict) and name in described else name


def _tables_with_params(tables: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (tables[name] for name in ("params", "cluster", "grid") if name in tables)
    yield from tables.get("case", [])
    yield from tables.get("engine", {}).values()
    if isinstance(tables.get("workload"), dict):
        yield from tables["workload"].values()


def _settle_paths(study: Study, tables: dict[str, Any]) -> None:
    """Paths from the study file's folder mean the same from elsewhere only if they are whole."""
    described = tables.get("workload")
    if isinstance(described, dict):
        for name, table in described.items():
            if "data" in table:
                table["data"] = study.workloads[name].data
    if "ssh_config" in tables.get("cluster", {}):
        tables["cluster"]["ssh_config"] = study.layers.base["ssh_config"]


def toml(tables: Mapping[str, Any], path: Sequence[str] = ()) -> Iterator[str]:
    """Tables as lines of TOML: plain keys first, then tables, each below its heading."""
    plain = {key: value for key, value in tables.items() if not _is_table(value) or len(path) >= 2}
    if path and (plain or not tables):
        yield f"[{'.'.join(map(_key, path))}]"
    yield from (f"{_key(key)} = {_value(value)}" for key, value in plain.items())
    if plain:
        yield ""
    for key, value in tables.items():
        if key in plain:
            continue
        if isinstance(value, dict):
            yield from toml(value, (*path, key))
        else:
            for each in value:
                yield f"[[{'.'.join(map(_key, (*path, key)))}]]"
                yield from (f"{_key(name)} = {_value(inner)}" for name, inner in each.items())
                yield ""


def _is_table(value: Any) -> bool:
    several = isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict) or several


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
