"""`trainoff show`: print the leader board of a folder of records."""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff import analysis
from trainoff.analysis import SettingGroup, bottleneck, failure, headline_target, ranked
from trainoff.analysis.format import dollars, quality, seconds, span, target_text
from trainoff.analysis.pareto import CheapestSetting, cheapest_settings
from trainoff.analysis.summary import closing_sentences, remarks
from trainoff.cli import common
from trainoff.errors import TrainoffError
from trainoff.files import write_output, writing
from trainoff.records import DamagedRecord, Record, folder_of, no_records
from trainoff.report.tables import ALWAYS, MEDIANS, Column, fault_boards, settings, table
from trainoff.reproductions.published import read_records
from trainoff.study.machines import PriceBook, read_prices

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_SETTINGS = 12  # in the tables of costs and of time
SHADES = " ░▒▓█"
TIMELINE_MARGIN = 4
SHORT = {"within tolerance": "tolerable", "different by design": "differs", "wrong": "WRONG", None: "-"}


def print_json(folder: Path, book: PriceBook | None = None) -> int:
    """Print the newest attempt at every trial as one JSON list; exit code 1 if a record is damaged."""
    records, damaged = _read(folder, book)
    print(json.dumps([record.to_json() for record in records], indent=1))
    return warn(damaged)


def print_results(folder: Path, console: Console, book: PriceBook | None = None) -> int:
    """Print the board, and the details of a single record; exit code 1 if a record is damaged."""
    records, damaged = _read(folder, book)
    if not records and not damaged:
        raise no_records(folder)
    if records:
        print_board(records, folder, console)
        if book and (remark := analysis.unpriced(records, book)):
            console.print(remark, style="yellow")
    if (folder / "record.json").exists():
        for record in records:
            _print_details(record, console)
    return warn(damaged)


def _read(folder: Path, book: PriceBook | None) -> tuple[list[Record], list[DamagedRecord]]:
    """Read the newest attempt at every trial, with the prices of a book if there is one."""
    records, damaged = read_records(folder)
    found = analysis.newest(records)
    return analysis.priced(found, book) if book else found, damaged


def _print_details(record: Record, console: Console) -> None:
    """Print the resources, the timeline and the last output of one record."""
    if resources := bottleneck.resource_lines(record):
        console.print("\nwhile it trained", style="dim")
    for line in [*resources, *bottleneck.node_lines(record)]:
        console.print(f"  {line}", style="dim", soft_wrap=True)
    if sentence := bottleneck.bottleneck_sentence(record):
        console.print(sentence, style="dim", soft_wrap=True)
    if lines := timeline(record, console.width):
        console.print("\n" + "\n".join(lines), style="dim")
    console.print(record.traceback or record.log_tail or "", soft_wrap=True)


def print_board(records: Sequence[Record], folder: Path, console: Console) -> None:
    """Print the boards, where the time went, and the closing sentences of the records in a folder."""
    found, width = analysis.groups(records), console.width
    workloads = analysis.by_workload(found)
    for index, workload in enumerate(workloads):
        if len(workloads) > 1:
            console.print(f"{chr(10) if index else ''}{workload[0].first.workload}", style="dim")
        console.print(board(workload, width))
    if times := time_board(found, width):
        best = f", of the best {times.row_count} settings" if times.row_count < len(found) else ""
        console.print(f"\nwhere the time went{best}", style="dim")
        console.print(times)
    if workers := bottleneck.worker_lines(ranked(found)[: 2 * MOST_SETTINGS]):
        console.print("\nwhat the workers did", style="dim")
    for name, parts in workers:
        for line in wrap_parts(f"  {name}: ", parts, width):
            console.print(line, style="dim", soft_wrap=True)
    for shown in fault_boards(found, width):
        console.print("\nwhat the faults did", style="dim")
        console.print(shown)
    for workload in workloads:
        if cheapest := cheapest_settings(workload):
            console.print("\nthe setting that reached each target with the least CPU time", style="dim")
            console.print(_cheapest_board(cheapest, width))
    for workload in workloads:
        _print_costs(workload, console)
    console.print()
    for sentence in [*closing_sentences(found), *analysis.disturbances(records), *remarks(found)]:
        console.print(sentence)
    if usual := analysis.usual_settings(found):
        console.print(usual, style="dim")
    for sentence in _failures(found, folder):
        console.print(sentence, style="yellow", soft_wrap=True)


def save_svg(folder: Path, path: Path, book: PriceBook | None = None) -> None:
    """Save the board as an SVG picture without external fonts."""
    from rich.console import Console

    drawing = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False, markup=False)
    print_board(_read(folder, book)[0], folder, drawing)
    svg = drawing.export_svg(title=f"trainoff show {folder}")
    with writing(path, "picture", "choose another with --svg"):
        write_output(path, re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))


def warn(damaged: Sequence[DamagedRecord]) -> int:
    """Print the records that cannot be read on stderr; return the exit code."""
    for one in damaged:
        print(f"trainoff: {one.folder}: {one.why}; move it away and run the study again", file=sys.stderr)
    return 1 if damaged else 0


def price_book(prices: Path | None, usd_per_core_hour: float | None) -> PriceBook | None:
    """Return the price book of the options, a file or one price; None for the recorded prices."""
    if prices is not None and usd_per_core_hour is not None:
        raise TrainoffError("--prices and --usd-per-core-hour both give a price; give one of them")
    if usd_per_core_hour is None:
        return read_prices(prices) if prices is not None else None
    if not usd_per_core_hour > 0:
        raise TrainoffError(f"--usd-per-core-hour {usd_per_core_hour:g}: expected a price above 0")
    return PriceBook(source="--usd-per-core-hour", usd_per_core_hour=usd_per_core_hour)


def board(found: Sequence[SettingGroup], width: int) -> Table:
    """Return the board of one workload: the fastest to the headline target first, failures last."""
    rows, target, metric = ranked(found), headline_target(found), found[0].first.metric
    heading = f"to {target_text(metric, target)}" if target else "to target"
    times = [seconds(group.time_to(target) if target else None) for group in rows]
    repeated = any(len(group.good) > 1 for group in rows)
    columns = [
        *_setting_columns(rows),
        Column(heading, times, right=True),
        *([Column("spread", [_spread(group, target) for group in rows], 35, right=True)] if repeated else []),
        Column(metric, [quality(group.median(lambda record: record.result)) for group in rows], right=True),
        *(_median_column(rows, name) for name in MEDIANS),
        Column("result", [_result(group) for group in rows]),
    ]
    known = [each for each in columns if each.priority == ALWAYS or any(cell != "-" for cell in each.cells)]
    return table(known, width, [None if group.good else "dim" for group in rows], folds=True)


def _setting_columns(rows: Sequence[SettingGroup]) -> list[Column]:
    """Return the columns that identify the setting of each row."""
    heading, texts = settings(rows)
    several = len({group.first.workload for group in rows}) > 1
    return [
        Column("engine", [group.first.engine for group in rows]),
        *([Column("workload", [group.first.workload for group in rows], 80)] if several else []),
        *([Column(heading, texts, shrinks=True)] if heading else []),
        Column("mode", [group.first.mode for group in rows], 40),
        Column("W", [str(group.first.workers or "-") for group in rows], 50, right=True),
    ]


def _median_column(rows: Sequence[SettingGroup], name: str, priority: int | None = None) -> Column:
    """Return a column of medians, if need be with another priority than on the board."""
    field, text, usual = MEDIANS[name]
    cells = [text(group.median(attrgetter(field))) for group in rows]
    return Column(name, cells, usual if priority is None else priority, right=True)


def _spread(group: SettingGroup, target: float | None) -> str:
    """Return the interval of the median time to the target, or with fewer than six repetitions the range."""
    spread = group.spread(target) if target else None
    return span(spread.low, spread.high) if spread and spread.n > 1 and math.isfinite(spread.low) else "-"


def _result(group: SettingGroup) -> str:
    """Return the verdict on a good setting or the status of a failed one, and the share of good repetitions."""
    if not group.good:
        return group.first.status
    verdict = group.good[0].equivalence.get("verdict")
    runs = f" {len(group.good)}/{len(group.records)}" if len(group.records) > 1 else ""
    return SHORT.get(verdict, str(verdict)) + runs


def time_board(found: Sequence[SettingGroup], width: int) -> Table | None:
    """Return how the best settings spent their time; settings without phases are left out."""
    known = [(group, split) for group in ranked(found) if (split := bottleneck.time_split(group))][:MOST_SETTINGS]
    if not known:
        return None
    columns = _setting_columns([group for group, _ in known])
    for name, attribute, priority in (
        ("start-up", "start", ALWAYS),
        ("rows", "rows", 60),
        ("feed", "feed", 70),
        ("training", "training", ALWAYS),
        ("test", "test", 20),
        ("end", "end", 10),
        ("in all", "whole", 55),
    ):
        values = [getattr(split, attribute) for _, split in known]
        if name != "feed" or any(value is not None for value in values):
            columns.append(Column(name, [seconds(value) for value in values], priority, right=True))
    return table(columns, width, ["dim"] * len(known), folds=True)


def wrap_parts(start: str, parts: Sequence[str], width: int) -> list[str]:
    """Join a name and its parts by commas, in lines of a width; after a long name the parts begin below it."""
    fits = len(start) + len(parts[0]) < width
    lines = [start + parts[0]] if fits else [start.rstrip(), f"    {parts[0]}"]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += ","
            lines.append(f"    {part}")
        else:
            lines[-1] += f", {part}"
    return lines


def _cheapest_board(cheapest: Sequence[CheapestSetting], width: int) -> Table:
    rows = [one.group for one in cheapest]
    columns = [
        Column("at least", [target_text(one.group.first.metric, one.target) for one in cheapest]),
        *_setting_columns(rows),
        _median_column(rows, "CPU", ALWAYS),
        _median_column(rows, "memory", ALWAYS),
        _median_column(rows, "train"),
        _median_column(rows, "test", 45),
    ]
    return table(columns, width, folds=True)


def _print_costs(found: Sequence[SettingGroup], console: Console) -> None:
    """Print what the cheapest settings of a workload cost, if every trial has a price."""
    target = headline_target(found)
    prices_known = all(record.usd_per_hour is not None for group in found for record in group.records)
    every = analysis.costs(found, target) if prices_known else []
    if not every:
        return
    shown = every[:MOST_SETTINGS]
    rows = [cost.group for cost in shown]
    to_target = "" if target is None else f"to {target_text(rows[0].first.metric, target)}"
    trials = [dollars(cost.trial) for cost in shown]
    columns = [
        *_setting_columns(rows),
        *([Column(to_target, [dollars(cost.to_target) for cost in shown], right=True)] if to_target else []),
        Column("training", [dollars(cost.run) for cost in shown], right=True),
        *([Column("whole trial", trials, 60, right=True)] if any(cost.trial is not None for cost in shown) else []),
    ]
    part = f"the cheapest {len(shown)} of {len(every)}" if len(every) > len(shown) else "the cheapest first"
    console.print(f"\nwhat {rows[0].first.workload} costs in money, {part}", style="dim")
    console.print(table(columns, console.width, folds=True))


def _failures(found: Sequence[SettingGroup], folder: Path) -> list[str]:
    """Return a sentence for each failed trial, with its log, and for each oversubscribed setting."""
    sentences = []
    for group in found:
        for record in group.records:
            if record.status != "ok":
                log = folder_of(folder, record) / "log.txt"
                path = f" (log: {log})" if record.failed and log.exists() else ""
                sentences.append(f"{group.name}, seed {record.seed}: {failure(record)}{path}")
        if clause := bottleneck.oversubscription(group.first):
            sentences.append(f"{group.name} {clause}")
    return sentences


def timeline(record: Record, width: int) -> list[str]:
    """Return a heading and a line per worker that shows when it was busy; empty if nothing was recorded."""
    end = max((task[1] for tasks in record.timeline.values() for task in tasks), default=0.0)
    if end <= 0:
        return []
    longest = max(map(len, record.timeline))
    bins = max(10, width - longest - TIMELINE_MARGIN)
    most = max(map(len, record.timeline.values()))
    heading = f"who worked when: the first {most} tasks of each worker, {seconds(end)} of training"
    rows = [f"  {worker:<{longest}} {shade(tasks, end, bins)}" for worker, tasks in sorted(record.timeline.items())]
    return [heading, *rows]


def shade(tasks: Sequence[Sequence[float]], end: float, bins: int) -> str:
    """Return a character per bin of time that shows how busy a worker was."""
    busy = [0.0] * bins
    size = end / bins
    for start, stop in tasks:
        for index in range(max(0, int(start / size)), min(bins, int(stop / size) + 1)):
            busy[index] += max(0.0, min(stop, (index + 1) * size) - max(start, index * size))
    return "".join(SHADES[min(len(SHADES) - 1, round(part / size * (len(SHADES) - 1)))] for part in busy)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(common.with_json(parser))
    common.add_prices(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also save the board as an SVG picture")


def execute(options: argparse.Namespace) -> int:
    book = price_book(options.prices, None)
    if options.svg:
        save_svg(options.folder, options.svg, book)
    if options.json:
        return print_json(options.folder, book)
    return print_results(options.folder, common.console(), book)
