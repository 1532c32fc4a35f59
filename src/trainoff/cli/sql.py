"""`trainoff sql`: a question to the tables `records`, `curves` and `samples`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from rich.console import Console

TABLES: dict[str, Callable[[Path, Sequence[Record]], polars.DataFrame]] = {
    "records": lambda folder, records: table(records),
    "curves": curves,
    "samples": samples,
}
NAMES = ", ".join(TABLES)
QUESTIONS = ("select", "with", "show", "explain", "from", "(")  # what a statement that asks begins with
MOST_ROWS = 1000  # of a table for a person
WIDEST = 40  # characters of a cell
_QUOTED = re.compile(r"""("[^"]*"|'[^']*'|`[^`]*`)""")


def tell(folder: Path, question: str, console: Console) -> int:
    """Print the answer as a table; columns for which there is no room are named below it. 1 if a record is damaged."""
    answer, code = ask(folder, question)
    if answer.is_empty():
        console.print("no rows", style="dim")
        return code
    shown = answer.head(MOST_ROWS)
    columns = [Column(name, _cells(shown[name]), right=shown[name].dtype.is_numeric()) for name in shown.columns]
    kept = _that_fit(columns, console.width)
    console.print(columns_table(kept, console.width, [None] * shown.height))
    if answer.height > MOST_ROWS:
        console.print(f"... and {answer.height - MOST_ROWS:,} more rows; --json has them all", style="dim")
    if len(kept) < len(columns):
        rest = ", ".join(column.heading for column in columns[len(kept) :])
        console.print(f"no room for {count(len(columns) - len(kept), 'column')}: {rest}", style="dim")
    return code


def as_json(folder: Path, question: str) -> int:
    """Print the answer as one JSON list of rows; exit code 1 if a record is damaged."""
    answer, code = ask(folder, question)
    rows = [{name: _finite(value) for name, value in row.items()} for row in answer.iter_rows(named=True)]
    print(json.dumps(rows, indent=1, default=str))
    return code


def _finite(value: Any) -> Any:
    """JSON has no word for what is not a number, and SQL's decimal fractions are ordinary ones to it."""
    value = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ask(folder: Path, question: str) -> tuple[polars.DataFrame, int]:
    """The answer to a question in SQL, and the exit code. Nothing that a question says can change a record."""
    import polars

    found, damaged = require_records(folder)
    if not question.lstrip().lower().startswith(QUESTIONS):
        raise TrainoffError("a question begins with `select`, as in `select engine, train_s from records`")
    frames = {
        name: make(folder, newest(found))
        for name, make in TABLES.items()
        if name == "records" or name in question.lower() or "show" in question.lower()
    }
    known = sorted({column for frame in frames.values() for column in frame.columns})
    try:
        with polars.SQLContext(frames, eager=True) as context:
            answer: polars.DataFrame = context.execute(_quote(question, known))
    except polars.exceptions.PolarsError as error:
        raise TrainoffError(_explain(str(error), question, known)) from error
    return answer, warn(damaged)


def _quote(question: str, known: Sequence[str]) -> str:
    """Put columns such as `params.epochs` in quotes; without them SQL takes the dot for that of a table."""
    dotted = sorted((column for column in known if "." in column), key=len, reverse=True)
    if not dotted:
        return question
    pattern = re.compile(rf"(?<![\w\"])({'|'.join(map(re.escape, dotted))})(?!\w)")
    parts = _QUOTED.split(question)  # every second one is quoted already
    return "".join(part if place % 2 else pattern.sub(r'"\1"', part) for place, part in enumerate(parts))


def _explain(said: str, question: str, known: Sequence[str]) -> str:
    """Polars' complaint in one sentence, with what was probably meant."""
    first = said.split("\n")[0]
    if relation := re.search(r"relation '(.+?)' was not found", first):
        return f"there is no table `{relation[1]}`; {_meant(relation[1], list(TABLES), f'the tables are {NAMES}')}"
    missing = re.search(r'unable to find column "(.+?)"|no column named \'(.+?)\'', first)
    struct = re.search(r"no table or struct column named '(.+?)' found", first)
    if struct and (dotted := re.search(rf"{re.escape(struct[1])}\.[\w.]+", question)):
        missing = dotted
    if missing:
        word = next((group for group in missing.groups() if group), missing[0])
        return f"there is no column `{word}`; {_meant(word, known, '`select * from records` shows those there are')}"
    return f"this question is not understood: {first.removeprefix('sql parser error: ')}"


def _meant(word: str, options: Sequence[str], otherwise: str) -> str:
    close = nearest(word, options)
    return f"did you mean `{close}`?" if close else otherwise


def _that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The first columns, as many as there is room for: their order is what the user asked for."""
    used = 0
    kept: list[Column] = []
    for column in columns:
        used += column.width + (1 if kept else 0)
        if kept and used > width:
            break
        kept.append(column)
    return kept


def _cells(series: polars.Series) -> list[str]:
    return [_cell(value) for value in series]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(common.with_json(parser))
    parser.add_argument("question", metavar="QUESTION", help='such as "select engine, train_s from records"')


def execute(options: argparse.Namespace) -> int:
    if options.json:
        return as_json(options.folder, options.question)
    return tell(options.folder, options.question, common.console())
