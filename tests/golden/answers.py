"""What trainoff answers about the golden records: which questions there are, and what of an answer counts.

`ANSWERS` names every question and how it is answered, in this process; the answers of an earlier version lie in
`expected/`, one JSON file each. `normal` takes off an answer what no two machines share, `differences` compares.
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
from golden.questions import COMMANDS, FOLDERS, HERE, PLUGINS, PUBLISHED, RECORDS, REPRODUCED, STUDIES, TEXTS
from helpers.running import invoke
from trainoff import cli
from trainoff.records import Record

EXPECTED = HERE / "expected"
PUBLIC = ("trainoff", "trainoff.engines", "trainoff.study", "trainoff.records")  # modules that others may import
CONTRACT = ("Engine", "Job", "Knob", "Missing", "Refused", "Watch")  # what an adapter is written against
CLOSE = 1e-9  # relative: numbers that lie so close are the same
SURROUNDINGS = {  # what a plan hangs on: whether there are namespaces, and how long the control kernel runs
    "TRAINOFF_ISOLATION": "process-group",
    "TRAINOFF_CONTROL_S": "0.001",
}
LINE = 180  # letters, in the files of answers
WIDTH = 100  # columns of the terminal in which text is told


def ask(*words: str, columns: int = 1000, **more: str) -> dict[str, Any]:
    """What a command says, as it was said: exit code, output, errors."""
    done = invoke(*words, cwd=HERE, COLUMNS=str(columns), **SURROUNDINGS, **more)
    return {"code": done.returncode, "told": done.stdout, "errors": done.stderr.splitlines()}


def of_command(words: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """The JSON that a command prints; nothing where it has only an error to tell."""
    own_cache = {"TRAINOFF_CACHE": str(scratch / "cache")} if words[0] == "data" else {}  # of no other test
    answer = ask(*words, "--json", **own_cache)
    told = answer.pop("told")
    return {**answer, "answer": json.loads(told) if told else None}


def of_text(words: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """The lines that a command prints for a person."""
    answer = ask(*words, columns=WIDTH)
    return {**answer, "told": [line.rstrip() for line in answer["told"].splitlines()]}


def of_plan(path: Path, scratch: Path) -> dict[str, Any]:
    """A study's trials without a record, one per line below the keys in which they differ."""
    answer = of_command(("plan", str(path), "--out", str(scratch / "nothing")), scratch)
    planned = without_this_machine(answer["answer"])
    trials = [
        {**trial, **{f"params.{key}": value for key, value in trial["params"].items()}} for trial in planned["trials"]
    ]
    for trial in trials:
        del trial["params"]
    keys = sorted({key for trial in trials for key in trial})
    same = {
        key: trials[0].get(key) for key in keys if all(trial.get(key, ...) == trials[0].get(key) for trial in trials)
    }
    told = [key for key in keys if key not in same]
    rows = [[trial.get(key, "-") for key in told] for trial in trials]
    return {**answer, "answer": {**planned, "same": same, "keys": told, "trials": rows}}


def without_this_machine(planned: dict[str, Any]) -> dict[str, Any]:
    """A plan without what hangs on this machine: ids, and whether there is Java or a GPU."""
    trials = [{key: value for key, value in trial.items() if key != "trial_id"} for trial in planned["trials"]]
    for trial in trials:
        on_spark = "spark" in trial["engine"] or trial["engine"] == "clumsy"
        if on_spark or trial["params"].get("device") == "cuda":
            trial.update(seconds=None, unsupported=None)
    whole = planned["seconds"] if all(trial["seconds"] is not None for trial in trials) else None
    return {**planned, "trials": trials, "seconds": whole}


def of_reproduction(name: str, scratch: Path) -> dict[str, Any]:
    """The verdicts on a published study's claims by the golden records, of which most say nothing about them."""
    (scratch / name).symlink_to(RECORDS / "engines")
    words = ("reproduce", name, "--only-judge", "--out", str(scratch), "--page", str(scratch / "page" / "page.md"))
    answer = of_command(words, scratch)
    return {**answer, "errors": [], "page": (scratch / "page" / "page.md").read_text().splitlines()}


def of_export(place: str, scratch: Path) -> dict[str, Any]:
    """The columns of the tables that are exported, and what stands in them."""
    answer = ask("export", place, "--to", "csv", "-o", str(scratch / "csv"))
    told = normal(answer.pop("told"), scratch).splitlines()
    tables = {}
    for path in sorted((scratch / "csv").glob("*.csv")):
        with path.open(newline="") as file:
            headings, *rows = csv.reader(file)
        columns = {name: _held([row[at] for row in rows]) for at, name in enumerate(headings)}
        tables[path.name] = {"rows": len(rows), "columns": columns}
    return {**answer, "told": told, "tables": tables}


def _held(cells: Sequence[Any]) -> list[Any]:
    """How many cells of a column hold something, and their sum, or for words a hash."""
    filled = [cell for cell in cells if cell not in ("", None)]
    try:
        return [len(filled), math.fsum(map(float, filled))]
    except ValueError:
        return [len(filled), hashlib.sha256("\n".join(map(str, filled)).encode()).hexdigest()[:12]]


def of_charts(folder: str, scratch: Path) -> dict[str, Any]:
    """The charts of the HTML report: what each offers, and the columns of its data."""
    answer = ask("report", f"records/{folder}", "-o", str(scratch / "report.html"))
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
    return {"code": answer["code"], "errors": answer["errors"], "charts": charts}


def _unpacked(data: Mapping[str, Any]) -> dict[str, Any]:
    columns = {
        name: _held([column["texts"][at] for at in column["at"]] if "texts" in column else column["values"])
        for name, column in data["columns"].items()
    }
    return {"rows": data["rows"], "columns": columns}


def of_markdown(folder: str, scratch: Path) -> dict[str, Any]:
    """The report as Markdown."""
    answer = ask("report", f"records/{folder}", "--markdown", "-o", str(scratch / "report.md"))
    return {**answer, "told": normal((scratch / "report.md").read_text(), scratch).splitlines()}


def of_order(folder: str, scratch: Path) -> dict[str, Any]:
    """Which records `show` prints, in its order; what it prints of each is compared with the record itself."""
    answer = ask("show", f"records/{folder}".rstrip("/"), "--json")
    told = json.loads(answer.pop("told"))
    return {**answer, "order": [f"{one['trial_id']}.{one['attempt']} {one['status']}" for one in told]}


def of_table(folder: str, scratch: Path) -> dict[str, Any]:
    """The columns of the table of records, and their types."""
    table = trainoff.load(RECORDS / folder).table()
    return {"rows": table.height, "columns": {name: str(kind) for name, kind in table.schema.items()}}


def of_names(scratch: Path) -> dict[str, Any]:
    """What others may import, and the fields of a record."""
    fields = dataclasses.fields(Record)
    return {
        **{name: sorted(importlib.import_module(name).__all__) for name in PUBLIC},
        "Record": {one.name: "needed" if _needed(one) else "may be left out" for one in fields},
        "signatures": {name: _called(getattr(trainoff, name)) for name in sorted(trainoff.__all__)},
        "contract": {name: _called(getattr(importlib.import_module("trainoff.engines"), name)) for name in CONTRACT},
    }


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _called(one: Any) -> Any:
    """How a function is called; of a class, what it has that others may use, and how that is called."""
    if not inspect.isclass(one):
        return _parameters(one)
    names = {name for name in (*dir(one), *inspect.get_annotations(one)) if not name.startswith("_")}
    own = {name: getattr(one, name, None) for name in sorted(names)}
    return {name: _parameters(each) if inspect.isfunction(each) else "" for name, each in own.items()}


def _parameters(function: Callable[..., Any]) -> str:
    """What a function takes, without the types."""
    asked = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in asked.parameters.values()]
    return str(asked.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def of_command_line(scratch: Path) -> dict[str, Any]:
    """What can be typed: of every command its words and options, and what they take."""
    return dict(_commands(cli.parser(), "trainoff"))


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    options, positionals = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _commands(below, f"{name} {word}")
        elif action.option_strings:
            options.append(" ".join(action.option_strings) + _taken(action))
        else:  # where they stand matters
            positionals.append(str(action.metavar or action.dest) + _taken(action))
    yield name, {"options": sorted(options), "positionals": positionals}


def _taken(action: argparse.Action) -> str:
    """What a word of the command line takes, as far as it is said."""
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


ANSWERS: dict[str, Callable[[Path], Any]] = {
    **{name: partial(of_command, words) for name, words in COMMANDS.items()},
    **{f"text-{name}": partial(of_text, words) for name, words in TEXTS.items()},
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


def answer(name: str, scratch: Path) -> Any:
    """What trainoff answers to a question now, as JSON that two machines share."""
    return normal(json.loads(json.dumps(ANSWERS[name](scratch), default=str)), scratch)


def normal(value: Any, scratch: Path) -> Any:
    """An answer without what no two machines or days share.

    - of an engine: whether it can run here, why not, and its version
    - of a dataset: whether it is here
    - the tests' own engines, which are no part of trainoff
    - the version of trainoff and the moment in a report's last line, and the folder in which a test writes

    Of a plan `without_this_machine` takes off the ids of trials, which hang on the source of engines and on versions.
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
    """Where two answers differ, as `place: expected ..., found ...`; numbers may differ by a billionth."""
    if isinstance(expected, dict) and isinstance(found, dict):
        said = []
        for key in [*expected, *(key for key in found if key not in expected)]:
            said += differences(expected.get(key, "(nothing)"), found.get(key, "(nothing)"), f"{place}/{key}")
        return said
    if isinstance(expected, list) and isinstance(found, list):
        said = [] if len(expected) == len(found) else [f"{place}: expected {len(expected)} items, found {len(found)}"]
        for at, (one, other) in enumerate(zip(expected, found)):  # noqa: B905  # the length is told above
            said += differences(one, other, f"{place}/{at}")
        return said
    if _is_number(expected) and _is_number(found):
        same = math.isclose(expected, found, rel_tol=CLOSE, abs_tol=1e-12)
    else:
        same = type(expected) is type(found) and expected == found
    return [] if same else [f"{place}: expected {expected!r}, found {found!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def dumped(value: Any, indent: str = "") -> str:
    """JSON that differs line by line: what fits into a line stands in one, and so does each list in a list."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= LINE or not isinstance(value, dict | list):
        return line
    more = indent + " "
    if isinstance(value, dict):
        parts = [f"{more}{json.dumps(key, ensure_ascii=False)}: {dumped(one, more)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    rows = [json.dumps(one, ensure_ascii=False) if isinstance(one, list) else dumped(one, more) for one in value]
    return "[\n" + ",\n".join(more + row for row in rows) + f"\n{indent}]"
