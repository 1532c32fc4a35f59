"""`trainoff sql`: query the tables `records`, `curves` and `samples`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainoff.analysis import newest
from trainoff.analysis.format import count
from trainoff.cli import common
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import Record, curves, samples, table
from trainoff.report.tables import Column
from trainoff.report.tables import table as columns_table
from trainoff.reproductions.published import require_records
from trainoff.study import nearest

if TYPE_CHECKING:
    import polars

TABLES: dict[str, Callable[[Path, Sequence[Record]], polars.DataFrame]] = {
    "records": lambda folder, records: table(records),
    "curves": curves,
    "samples": samples,
}
READING = ("select", "with", "show", "explain", "from", "(")  # the beginnings of statements that read
MAX_ROWS = 1000  # of a table in the terminal
MAX_CELL = 40  # characters
_QUOTED = re.compile(r"""("[^"]*"|'[^']*'|`[^`]*`)""")


def print_table(folder: Path, query: str, console: Console) -> int:
    """Print the result as a table, and name the columns that do not fit; exit code 1 if a record is damaged."""
    frame, code = run_query(folder, query)
    if frame.is_empty():
        console.print("no rows", style="dim")
        return code
    shown = frame.head(MAX_ROWS)
    columns = [
        Column(name, [_cell(value) for value in shown[name]], right=shown[name].dtype.is_numeric())
        for name in shown.columns
    ]
    kept = _fitting(columns, console.width)
    console.print(columns_table(kept, console.width))
    if frame.height > MAX_ROWS:
        console.print(f"... and {frame.height - MAX_ROWS:,} more rows; --json has them all", style="dim")
    if len(kept) < len(columns):
        names = ", ".join(column.heading for column in columns[len(kept) :])
        console.print(f"no room for {count(len(columns) - len(kept), 'column')}: {names}", style="dim")
    return code


def print_json(folder: Path, query: str) -> int:
    """Print the result as one JSON list of rows; exit code 1 if a record is damaged."""
    frame, code = run_query(folder, query)
    rows = [{name: _finite(value) for name, value in row.items()} for row in frame.iter_rows(named=True)]
    print(json.dumps(rows, indent=1, default=str))
    return code


def _finite(value: Any) -> Any:
    """Return a value that JSON can express: a float for a decimal, null for what is not finite."""
    value = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_query(folder: Path, query: str) -> tuple[polars.DataFrame, int]:
    """Return the result of an SQL query, which cannot change a record, and the exit code."""
    import polars

    found, damaged = require_records(folder)
    if not query.lstrip().lower().startswith(READING):
        raise TrainoffError("a query begins with `select`, as in `select engine, train_s from records`")
    frames = {
        name: make(folder, newest(found))
        for name, make in TABLES.items()
        if name == "records" or name in query.lower() or "show" in query.lower()
    }
    known = sorted({column for frame in frames.values() for column in frame.columns})
    try:
        with polars.SQLContext(frames, eager=True) as context:
            frame: polars.DataFrame = context.execute(_quote_columns(query, known))
    except polars.exceptions.PolarsError as error:
        raise TrainoffError(_explain(str(error), query, known)) from error
    return frame, warn(damaged)


def _quote_columns(query: str, known: Sequence[str]) -> str:
    """Put columns such as `params.epochs` in quotes; without them SQL takes the part before the dot for a table."""
    dotted = sorted((column for column in known if "." in column), key=len, reverse=True)
    if not dotted:
        return query
    pattern = re.compile(rf"(?<![\w\"])({'|'.join(map(re.escape, dotted))})(?!\w)")
    parts = _QUOTED.split(query)  # every second one is quoted already
    return "".join(part if index % 2 else pattern.sub(r'"\1"', part) for index, part in enumerate(parts))


def _explain(message: str, query: str, known: Sequence[str]) -> str:
    """Translate an error of Polars into one sentence, with the name that was probably meant."""
    first = message.split("\n")[0]
    if relation := re.search(r"relation '(.+?)' was not found", first):
        hint = _meant(relation[1], list(TABLES), f"the tables are {', '.join(TABLES)}")
        return f"there is no table `{relation[1]}`; {hint}"
    missing = re.search(r'unable to find column "(.+?)"|no column named \'(.+?)\'', first)
    struct = re.search(r"no table or struct column named '(.+?)' found", first)
    if struct and (dotted := re.search(rf"{re.escape(struct[1])}\.[\w.]+", query)):
        missing = dotted
    if missing:
        name = next((group for group in missing.groups() if group), missing[0])
        return f"there is no column `{name}`; {_meant(name, known, '`select * from records` shows all columns')}"
    return f"this query is not understood: {first.removeprefix('sql parser error: ')}"


def _meant(name: str, options: Sequence[str], otherwise: str) -> str:
    close = nearest(name, options)
    return f"did you mean `{close}`?" if close else otherwise


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return as many of the first columns as fit; their order is the user's."""
    used = 0
    kept: list[Column] = []
    for column in columns:
        used += column.width + (1 if kept else 0)
        if kept and used > width:
            break
        kept.append(column)
    return kept


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(common.with_json(parser))
    parser.add_argument("query", metavar="QUESTION", help='such as "select engine, train_s from records"')


def execute(options: argparse.Namespace) -> int:
    if options.json:
        return print_json(options.folder, options.query)
    return print_table(options.folder, options.query, common.console())
