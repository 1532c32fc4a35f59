"""`trainoff show`: the leader board of a folder, or its records as JSON, or the board as a picture."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import (
    answer,
    batch_lines,
    bottleneck_sentence,
    bounds,
    correlation_lines,
    disturbances,
    groups,
    newest,
    node_lines,
    priced,
    resources,
    start_costs,
    unnamed,
    unpriced,
)
from trainoff.cli.board import boards, remarks, what_the_workers_did, where_the_time_went
from trainoff.errors import TrainoffError
from trainoff.records import Damaged, Record, no_records
from trainoff.report.faults import fault_boards
from trainoff.report.money import cost_boards
from trainoff.report.prices import price_boards
from trainoff.report.timeline import picture
from trainoff.reproductions.published import records_of
from trainoff.study.prices import PriceBook

if TYPE_CHECKING:
    from rich.console import Console


def as_json(folder: Path, book: PriceBook | None = None) -> int:
    """Print the newest attempt at every trial as one JSON list; exit code 1 if a record is damaged."""
    records, damaged = records_of(folder)
    found = newest(records)
    print(json.dumps([record.to_json() for record in (priced(found, book) if book else found)], indent=1))
    return warn(damaged)


def tell(folder: Path, console: Console, book: PriceBook | None = None) -> int:
    """Print the board and what it means; of a single record also its last words. 1 if a record is damaged."""
    records, damaged = records_of(folder)
    if not records and not damaged:
        raise no_records(folder)
    if records:
        found = newest(records)
        shown = priced(found, book) if book else found
        print_board(shown, folder, console)
        if book and (why := unpriced(shown, book)):
            console.print(why, style="yellow")
    if (folder / "record.json").exists():
        for record in records:
            if lines := resources(record):
                console.print("\nwhile it trained", style="dim")
            for line in lines:
                console.print(f"  {line}", style="dim", soft_wrap=True)
            for line in node_lines(record):
                console.print(f"  {line}", style="dim", soft_wrap=True)
            if held := bottleneck_sentence(record):
                console.print(held, style="dim", soft_wrap=True)
            for place, line in enumerate(picture(record, console.width)):
                console.print(line if place else f"\n{line}", style="dim")
            console.print(record.traceback or record.log_tail or "", soft_wrap=True)
    return warn(damaged)


def print_board(records: Sequence[Record], folder: Path, console: Console) -> None:
    """The boards, where the time went, and the answer; `folder` is where the records lie."""
    found = groups(records)
    several = len({group.first.workload for group in found}) > 1
    for place, (workload, table) in enumerate(boards(found, console.width)):
        if several:
            console.print(f"{chr(10) if place else ''}{workload}", style="dim")
        console.print(table)
    if times := where_the_time_went(found, console.width):
        best = f", of the best {times.row_count} settings" if times.row_count < len(found) else ""
        console.print(f"\nwhere the time went{best}", style="dim")
        console.print(times)
    if lines := what_the_workers_did(found, console.width):
        console.print("\nwhat the workers did", style="dim")
        for line in lines:
            console.print(line, style="dim", soft_wrap=True)
    for table in fault_boards(found, console.width):
        console.print("\nwhat the faults did", style="dim")
        console.print(table)
    for table in price_boards(found, console.width):
        console.print("\nwhat it costs at least: the setting that got there with the least CPU time", style="dim")
        console.print(table)
    for workload, more, table in cost_boards(found, console.width):
        few = f"the cheapest {table.row_count} of {table.row_count + more}" if more else "the cheapest first"
        console.print(f"\nwhat {workload} costs in money, {few}", style="dim")
        console.print(table)
    console.print()
    remarked = [*start_costs(found), *bounds(found), *batch_lines(found), *correlation_lines(found)]
    for sentence in [*answer(found), *disturbances(records), *remarked]:
        console.print(sentence)
    if usual := unnamed(found):
        console.print(usual, style="dim")
    for remark in remarks(found, folder):
        console.print(remark, style="yellow", soft_wrap=True)


def draw(folder: Path, picture: Path, book: PriceBook | None = None) -> None:
    """Save the board as an SVG picture that needs nothing from elsewhere, fonts included."""
    from rich.console import Console

    drawing = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False, markup=False)
    found = newest(records_of(folder)[0])
    print_board(priced(found, book) if book else found, folder, drawing)
    svg = drawing.export_svg(title=f"trainoff show {folder}")
    try:
        picture.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))
    except OSError as error:
        why = f"the picture cannot be written there ({error.strerror}); choose another with --svg"
        raise TrainoffError(f"{picture}: {why}") from error


def warn(damaged: Sequence[Damaged]) -> int:
    """Name the records that cannot be read; they are left alone."""
    for one in damaged:
        print(f"trainoff: {one.folder}: {one.why}; move it away and run the study again", file=sys.stderr)
    return 1 if damaged else 0
