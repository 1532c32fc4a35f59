"""The output of trainoff for every golden case, normalised, and the comparison with an earlier version's output.

`CASES` maps the name of every case to the function that makes its output in this process. The outputs of the earlier
version are in `expected/`, one JSON file each. `normal` removes what differs between machines; `differences` compares.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trainoff
from golden.cases import COMMANDS, FOLDERS, HERE, PLUGINS, PUBLISHED, RECORDS, REPRODUCED, STUDIES, TEXTS
from helpers.running import invoke
from trainoff import cli
from trainoff.records import Record

EXPECTED = HERE / "expected"
PUBLIC = ("trainoff", "trainoff.engines", "trainoff.study", "trainoff.records")  # modules that others may import
CONTRACT = ("Engine", "Job", "Knob", "Missing", "Refused", "Watch")  # what an adapter uses
CLOSE = 1e-9  # relative: numbers this close are equal
ENVIRONMENT = {  # a plan depends on namespaces and on the length of the control kernel
    "TRAINOFF_ISOLATION": "process-group",
    "TRAINOFF_CONTROL_S": "0.001",
}
LINE = 180  # characters, in the files of outputs
WIDTH = 100  # columns of the terminal


def run(*arguments: str, columns: int = 1000, **more: str) -> dict[str, Any]:
    """Run a command; return its exit code, output and errors."""
    done = invoke(*arguments, cwd=HERE, COLUMNS=str(columns), **ENVIRONMENT, **more)
    return {"code": done.returncode, "stdout": done.stdout, "errors": done.stderr.splitlines()}


def of_command(arguments: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """Return the JSON that a command prints, or None if it prints only an error."""
    own_cache = {"TRAINOFF_CACHE": str(scratch / "cache")} if arguments[0] == "data" else {}  # of no other test
    output = run(*arguments, "--json", **own_cache)
    text = output.pop("stdout")
    return {**output, "json": json.loads(text) if text else None}


def of_text(arguments: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """Return the lines that a command prints for a person."""
    output = run(*arguments, columns=WIDTH)
    return {**output, "stdout": [line.rstrip() for line in output["stdout"].splitlines()]}


def of_plan(path: Path, scratch: Path) -> dict[str, Any]:
    """Return a study's trials without a record, one per line below the keys in which they differ."""
    output = of_command(("plan", str(path), "--out", str(scratch / "nothing")), scratch)
    planned = without_this_machine(output["json"])
    trials = [
        {**trial, **{f"params.{key}": value for key, value in trial["params"].items()}} for trial in planned["trials"]
    ]
    for trial in trials:
        del trial["params"]
    keys = sorted({key for trial in trials for key in trial})
    same = {
        key: trials[0].get(key) for key in keys if all(trial.get(key, ...) == trials[0].get(key) for trial in trials)
    }
    varying = [key for key in keys if key not in same]
    rows = [[trial.get(key, "-") for key in varying] for trial in trials]
    return {**output, "json": {**planned, "same": same, "keys": varying, "trials": rows}}


def without_this_machine(planned: dict[str, Any]) -> dict[str, Any]:
    """Return a plan without what depends on this machine: ids, and whether there is Java or a GPU."""
    trials = [{key: value for key, value in trial.items() if key != "trial_id"} for trial in planned["trials"]]
    for trial in trials:
        on_spark = "spark" in trial["engine"] or trial["engine"] == "clumsy"
        if on_spark or trial["params"].get("device") == "cuda":
            trial.update(seconds=None, unsupported=None)
    whole = planned["seconds"] if all(trial["seconds"] is not None for trial in trials) else None
    return {**planned, "trials": trials, "seconds": whole}


def of_reproduction(name: str, scratch: Path) -> dict[str, Any]:
    """Return the verdicts on a published study's claims by the golden records, most of which are not comparable."""
    (scratch / name).symlink_to(RECORDS / "engines")
    arguments = ("reproduce", name, "--only-judge", "--out", str(scratch), "--page", str(scratch / "page" / "page.md"))
    output = of_command(arguments, scratch)
    return {**output, "errors": [], "page": (scratch / "page" / "page.md").read_text().splitlines()}


def of_export(place: str, scratch: Path) -> dict[str, Any]:
    """Return the columns of the exported tables, summed up."""
    output = run("export", place, "--to", "csv", "-o", str(scratch / "csv"))
    text = normal(output.pop("stdout"), scratch).splitlines()
    tables = {}
    for path in sorted((scratch / "csv").glob("*.csv")):
        with path.open(newline="") as file:
            headings, *rows = csv.reader(file)
        columns = {name: _summed([row[at] for row in rows]) for at, name in enumerate(headings)}
        tables[path.name] = {"rows": len(rows), "columns": columns}
    return {**output, "stdout": text, "tables": tables}


def _summed(cells: Sequence[Any]) -> list[Any]:
    """Return how many cells of a column are filled, and their sum, or a hash of texts."""
    filled = [cell for cell in cells if cell not in ("", None)]
    try:
        return [len(filled), math.fsum(map(float, filled))]
    except ValueError:
        return [len(filled), hashlib.sha256("\n".join(map(str, filled)).encode()).hexdigest()[:12]]


def of_charts(folder: str, scratch: Path) -> dict[str, Any]:
    """Return the charts of the HTML report: the choices of each, and the columns of its data."""
    output = run("report", f"records/{folder}", "-o", str(scratch / "report.html"))
    page = (scratch / "report.html").read_text()
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found, "the report has no data for charts"
    charts = [
        {
            "about": chart["about"],
            "choices": [{"holes": one["placeholders"], "only": one["only"]} for one in chart["choices"]],
            **{key: chart[key] for key in ("table", "pick", "listed")},
            "data": {name: _unpacked(data) for name, data in chart["data"].items()},
        }
        for chart in json.loads(found[1])
    ]
    return {"code": output["code"], "errors": output["errors"], "charts": charts}


def _unpacked(data: Mapping[str, Any]) -> dict[str, Any]:
    columns = {
        name: _summed([column["texts"][at] for at in column["at"]] if "texts" in column else column["values"])
        for name, column in data["columns"].items()
    }
    return {"rows": data["rows"], "columns": columns}


def of_markdown(folder: str, scratch: Path) -> dict[str, Any]:
    """Return the report as Markdown."""
    output = run("report", f"records/{folder}", "--markdown", "-o", str(scratch / "report.md"))
    return {**output, "stdout": normal((scratch / "report.md").read_text(), scratch).splitlines()}


def of_order(folder: str, scratch: Path) -> dict[str, Any]:
    """Return which records `show` prints, in order; a test compares their content with the records."""
    output = run("show", f"records/{folder}".rstrip("/"), "--json")
    listed = json.loads(output.pop("stdout"))
    return {**output, "order": [f"{one['trial_id']}.{one['attempt']} {one['status']}" for one in listed]}


def of_table(folder: str, scratch: Path) -> dict[str, Any]:
    """Return the columns of the table of records with their types."""
    table = trainoff.load(RECORDS / folder).table()
    return {"rows": table.height, "columns": {name: str(kind) for name, kind in table.schema.items()}}


def of_names(scratch: Path) -> dict[str, Any]:
    """Return the public names with their signatures, and the fields of a record."""
    fields = dataclasses.fields(Record)
    return {
        **{name: sorted(importlib.import_module(name).__all__) for name in PUBLIC},
        "Record": {one.name: "needed" if _needed(one) else "may be left out" for one in fields},
        "signatures": {name: _signature(getattr(trainoff, name)) for name in sorted(trainoff.__all__)},
        "contract": {name: _signature(getattr(importlib.import_module("trainoff.engines"), name)) for name in CONTRACT},
    }


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _signature(one: Any) -> Any:
    """Return a function's parameters, or of a class its public attributes with the parameters of its methods."""
    if not inspect.isclass(one):
        return _parameters(one)
    names = {name for name in (*dir(one), *inspect.get_annotations(one)) if not name.startswith("_")}
    attributes = {name: getattr(one, name, None) for name in sorted(names)}
    return {name: _parameters(each) if inspect.isfunction(each) else "" for name, each in attributes.items()}


def _parameters(function: Callable[..., Any]) -> str:
    """Return a function's parameters without their types."""
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def of_command_line(scratch: Path) -> dict[str, Any]:
    """Return every command with its positional arguments and options, and what they take."""
    return dict(_commands(cli.parser(), "trainoff"))


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    options, positionals = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from _commands(below, f"{name} {command}")
        elif action.option_strings:
            options.append(" ".join(action.option_strings) + _taken(action))
        else:  # their order matters
            positionals.append(str(action.metavar or action.dest) + _taken(action))
    yield name, {"options": sorted(options), "positionals": positionals}


def _taken(action: argparse.Action) -> str:
    """Return what an argument of the command line takes."""
    default = None if action.default == argparse.SUPPRESS else action.default
    facts = {
        "nargs": action.nargs,
        "type": getattr(action.type, "__name__", None),
        "choices": list(action.choices) if action.choices else None,
        "default": str(default) if isinstance(default, Path) else default,
        "metavar": action.metavar if action.option_strings else None,
        "required": action.required or None,
        "again": isinstance(action, argparse._AppendAction) or None,
    }
    return "".join(f"; {name} {value}" for name, value in facts.items() if value is not None)


CASES: dict[str, Callable[[Path], Any]] = {
    **{name: partial(of_command, arguments) for name, arguments in COMMANDS.items()},
    **{f"text-{name}": partial(of_text, arguments) for name, arguments in TEXTS.items()},
    **{f"plan-{name}": partial(of_plan, path) for name, path in STUDIES.items()},
    **{f"reproduce-{name}": partial(of_reproduction, name) for name in REPRODUCED},
    **{f"show-order-{folder or 'all'}": partial(of_order, folder) for folder in ("", *FOLDERS)},
    **{f"export-{folder}": partial(of_export, f"records/{folder}") for folder in FOLDERS},
    **{f"export-published-{name}": partial(of_export, f"published:{name}") for name in PUBLISHED},
    **{f"charts-{folder}": partial(of_charts, folder) for folder in FOLDERS},
    **{f"markdown-{folder}": partial(of_markdown, folder) for folder in FOLDERS},
    **{f"table-{folder}": partial(of_table, folder) for folder in FOLDERS},
    "python-names": of_names,
    "command-line": of_command_line,
}


def output_of(name: str, scratch: Path) -> Any:
    """Return the output of a case now, normalised."""
    return normal(json.loads(json.dumps(CASES[name](scratch), default=str)), scratch)


def normal(value: Any, scratch: Path) -> Any:
    """Return an output without what differs between machines or days.

    - of an engine: whether it can run here, why not, and its version
    - of a dataset: whether it is here
    - the engines of tests/plugin
    - the version of trainoff and the moment in a report's last line, and the folder in which a test writes

    From a plan `without_this_machine` removes the ids of trials, which depend on the source of engines and on versions.
    """
    if isinstance(value, str):
        value = value.replace(str(scratch), "SCRATCH")
        return re.sub(r"trainoff \d+\.\d+\.\d+\S*, \d{4}-\d\d-\d\d \d\d:\d\d UTC", "trainoff VERSION, MOMENT", value)
    if isinstance(value, list):
        return [normal(one, scratch) for one in value if not (isinstance(one, dict) and _is_plugin(one))]
    if isinstance(value, dict):
        dropped = ("status", "reason", "version") if "knobs" in value else ("cached",) if "train_rows" in value else ()
        return {key: normal(one, scratch) for key, one in value.items() if key not in dropped}
    return value


def _is_plugin(row: Mapping[str, Any]) -> bool:
    return "knobs" in row and row.get("name") in PLUGINS


def differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """Return where two outputs differ, as `place: expected ..., found ...`; numbers may differ by a billionth."""
    if isinstance(expected, dict) and isinstance(found, dict):
        result = []
        for key in [*expected, *(key for key in found if key not in expected)]:
            result += differences(expected.get(key, "(nothing)"), found.get(key, "(nothing)"), f"{place}/{key}")
        return result
    if isinstance(expected, list) and isinstance(found, list):
        result = [] if len(expected) == len(found) else [f"{place}: expected {len(expected)} items, found {len(found)}"]
        for at, (one, other) in enumerate(zip(expected, found)):  # noqa: B905  # the length is compared above
            result += differences(one, other, f"{place}/{at}")
        return result
    if _is_number(expected) and _is_number(found):
        same = math.isclose(expected, found, rel_tol=CLOSE, abs_tol=1e-12)
    else:
        same = type(expected) is type(found) and expected == found
    return [] if same else [f"{place}: expected {expected!r}, found {found!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def dumped(value: Any, indent: str = "") -> str:
    """Return JSON for line-by-line diffs: what fits into a line is on one, and so is each list in a list."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= LINE or not isinstance(value, dict | list):
        return line
    more = indent + " "
    if isinstance(value, dict):
        parts = [f"{more}{json.dumps(key, ensure_ascii=False)}: {dumped(one, more)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    rows = [json.dumps(one, ensure_ascii=False) if isinstance(one, list) else dumped(one, more) for one in value]
    return "[\n" + ",\n".join(more + row for row in rows) + f"\n{indent}]"
