"""The tuned study as a file: the study with its comments, the winners in [engine.NAME], and how they were found."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.errors import TrainoffError
from trainoff.files import write_output, writing
from trainoff.study import CLUSTER, LIMITS, Study
from trainoff.tuning.results import TuningResult

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def default_path(path: Path) -> Path:
    """Return the path of the tuned study: beside the study."""
    return path.with_name(f"{path.stem}-tuned.toml")


def check_path(path: Path, study: Path) -> None:
    """Raise an error if the path is that of the study itself, or cannot be written."""
    if path.exists() and path.samefile(study):
        raise TrainoffError(f"{path}: that is the study itself; choose another file with -o")
    if path.is_dir() or not path.parent.is_dir():
        raise TrainoffError(f"{path}: no file can be written there; choose another with -o")


def check_overrides(study: Study) -> None:
    """Raise an error if an override gives one engine a value of a key that the study sweeps: no file can say that."""
    layers = study.layers
    swept = {*layers.grid, *(key for case in layers.cases for key in case)} - layers.overrides.keys()
    for engine, values in layers.engine_overrides.items():
        for key in sorted(values.keys() & swept):
            raise TrainoffError(f"--set engine.{engine}.{key}: the study sweeps {key}; set it for all engines")


def write(study: Study, result: TuningResult, path: Path, machine: str) -> None:
    """Write the study with the winners; `machine` describes where they were found."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    stopped = "It was stopped early: these are the best values by then. The same command goes on."
    lines = [
        f"{study.path.name}, tuned by `trainoff tune` on {today}, on validation rows: no test row was used.",
        machine,
        *([stopped] if result.interrupted else []),
        *(one.sentence for one in result.engines),
    ]
    header = "".join(f"# {line}\n" for line in lines)
    text = f"{header}\n{tuned_document(study, result, path).as_string()}"
    with writing(path, "study", "choose another file with -o"):
        write_output(path, text)


def tuned_document(study: Study, result: TuningResult, path: Path) -> TOMLDocument:
    """Return the study file with the overrides of the command line, another name and the winners."""
    import tomlkit

    document = tomlkit.parse(study.path.read_text(encoding="utf-8-sig"))
    _apply_overrides(study, document)
    _update(document, (), {"name": f"{study.name}-tuned", "engines": [engine.name for engine in study.engines]})
    for one in result.engines:
        _update(document, ("engine", one.engine), one.winner)
    if path.absolute().parent != study.path.absolute().parent:
        _make_paths_absolute(study, document)
    return document


def _apply_overrides(study: Study, document: TOMLDocument) -> None:
    """Write what --set has changed into the document, and remove what it has overruled."""
    layers = study.layers
    for key, value in layers.overrides.items():
        for table in _tables_with_params(document):
            table.pop(key, None)
        if key == "workload":
            described = document.get("workload")
            document["workload"] = (
                {value: described[value]} if isinstance(described, dict) and value in described else value
            )
        elif value is not None:
            _update(document, ("cluster" if key in CLUSTER else "params",), {key: value})
    for engine, values in layers.engine_overrides.items():
        _update(document, ("engine", engine), values)
    (used,) = {trial.workload for trial in study.trials()}
    for table in _workload_tables(document):
        table.pop("targets", None)
    _update(document, (), {"targets": list(study.workloads[used].targets), "repeat": study.repeat})
    limits = {key: getattr(study.limits, key) for key in LIMITS}
    written = document.get("limits", {})
    limits = {key: value for key, value in limits.items() if key in written or value != LIMITS[key].default}
    _update(document, ("limits",), limits)
    for name in ("grid", "params", "cluster"):
        if name in document and not document[name]:
            del document[name]


def _update(document: TOMLDocument, key_path: tuple[str, ...], values: Any) -> None:
    """Set values in a table, which is added if it is missing."""
    import tomlkit

    table: Any = document
    for index, name in enumerate(key_path if values else ()):
        if name not in table:
            table[name] = tomlkit.table(is_super_table=index < len(key_path) - 1)
        table = table[name]
    for key, value in values.items():
        if table.get(key) != value:  # what is equal stays as it is written
            table[key] = _item(value)


def _item(value: Any) -> Any:
    """Return a value for the document: a table becomes an inline one, without its unset keys."""
    import tomlkit

    if isinstance(value, list):
        return [_item(each) for each in value]
    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update({key: _item(inner) for key, inner in value.items() if inner is not None})
    return inline


def _tables_with_params(document: TOMLDocument) -> Iterator[Any]:
    yield from (document[name] for name in ("params", "cluster", "grid") if name in document)
    yield from document.get("case", [])
    yield from document.get("engine", {}).values()
    yield from _workload_tables(document)


def _workload_tables(document: TOMLDocument) -> list[Any]:
    described = document.get("workload")
    return list(described.values()) if isinstance(described, dict) else []


def _make_paths_absolute(study: Study, document: TOMLDocument) -> None:
    """Replace paths that are relative to the folder of the study file."""
    described = document.get("workload")
    for name, table in described.items() if isinstance(described, dict) else ():
        if "data" in table:
            table["data"] = study.workloads[name].data
    if "ssh_config" in document.get("cluster", {}):
        document["cluster"]["ssh_config"] = study.layers.base["ssh_config"]
