"""`trainoff show`: the leader board of a folder of records."""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import (
    CheapestSetting,
    Cost,
    SettingGroup,
    TimeSplit,
    batch_lines,
    bottleneck_sentence,
    bound_sentences,
    by_workload,
    cheapest_settings,
    closing_sentences,
    correlation_lines,
    costs,
    disturbances,
    failure,
    groups,
    headline_target,
    newest,
    node_lines,
    priced,
    ranked,
    resource_lines,
    start_costs,
    time_split,
    unpriced,
    usual_settings,
    worker_lines,
)
from trainoff.analysis.bottleneck import oversubscription
from trainoff.analysis.format import dollars, quality, seconds, size, span, target_text
from trainoff.cli import common
from trainoff.errors import TrainoffError
from trainoff.records import DamagedRecord, Record, folder_of, no_records
from trainoff.report.tables import ALWAYS, Column, fault_boards, heading, setting, table
from trainoff.report.tables import table as columns_table
from trainoff.reproductions.published import read_records
from trainoff.study.machines import PriceBook, read_prices

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def as_json(folder: Path, book: PriceBook | None = None) -> int:
    """Print the newest attempt at every trial as one JSON list; exit code 1 if a record is damaged."""
    records, damaged = read_records(folder)
    found = newest(records)
    print(json.dumps([record.to_json() for record in (priced(found, book) if book else found)], indent=1))
    return warn(damaged)


def tell(folder: Path, console: Console, book: PriceBook | None = None) -> int:
    """Print the board and what it means; of a single record also its last words. 1 if a record is damaged."""
    records, damaged = read_records(folder)
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
            if lines := resource_lines(record):
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
    for place, (workload, shown) in enumerate(boards(found, console.width)):
        if several:
            console.print(f"{chr(10) if place else ''}{workload}", style="dim")
        console.print(shown)
    if times := where_the_time_went(found, console.width):
        best = f", of the best {times.row_count} settings" if times.row_count < len(found) else ""
        console.print(f"\nwhere the time went{best}", style="dim")
        console.print(times)
    if lines := what_the_workers_did(found, console.width):
        console.print("\nwhat the workers did", style="dim")
        for line in lines:
            console.print(line, style="dim", soft_wrap=True)
    for shown in fault_boards(found, console.width):
        console.print("\nwhat the faults did", style="dim")
        console.print(shown)
    for shown in price_boards(found, console.width):
        console.print("\nwhat it costs at least: the setting that got there with the least CPU time", style="dim")
        console.print(shown)
    for workload, more, shown in cost_boards(found, console.width):
        few = f"the cheapest {shown.row_count} of {shown.row_count + more}" if more else "the cheapest first"
        console.print(f"\nwhat {workload} costs in money, {few}", style="dim")
        console.print(shown)
    console.print()
    remarked = [*start_costs(found), *bound_sentences(found), *batch_lines(found), *correlation_lines(found)]
    for sentence in [*closing_sentences(found), *disturbances(records), *remarked]:
        console.print(sentence)
    if usual := usual_settings(found):
        console.print(usual, style="dim")
    for remark in remarks(found, folder):
        console.print(remark, style="yellow", soft_wrap=True)


def draw(folder: Path, picture: Path, book: PriceBook | None = None) -> None:
    """Save the board as an SVG picture that needs nothing from elsewhere, fonts included."""
    from rich.console import Console

    drawing = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False, markup=False)
    found = newest(read_records(folder)[0])
    print_board(priced(found, book) if book else found, folder, drawing)
    svg = drawing.export_svg(title=f"trainoff show {folder}")
    try:
        picture.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))
    except OSError as error:
        why = f"the picture cannot be written there ({error.strerror}); choose another with --svg"
        raise TrainoffError(f"{picture}: {why}") from error


def warn(damaged: Sequence[DamagedRecord]) -> int:
    """Name the records that cannot be read; they are left alone."""
    for one in damaged:
        print(f"trainoff: {one.folder}: {one.why}; move it away and run the study again", file=sys.stderr)
    return 1 if damaged else 0


def price_boards(found: Sequence[SettingGroup], width: int) -> list[Table]:
    """One table per workload; none where no engine was tried in several settings."""
    return [_price_board(own, width) for groups in by_workload(found) if (own := cheapest_settings(groups))]


def _price_board(found: Sequence[CheapestSetting], width: int) -> Table:
    groups = [price.group for price in found]
    keys = list(dict.fromkeys(key for group in groups for key in group.label if key != "workload"))
    settings = [setting([group.label.get(key, "-") for key in keys]) for group in groups]

    def column(
        name: str, told: Callable[[float | None], str], value: Callable[[Record], float | None], worth: int
    ) -> Column:
        return Column(name, [told(group.median(value)) for group in groups], worth, right=True)

    columns = [
        Column("at least", [target_text(price.group.first.metric, price.target) for price in found]),
        Column("engine", [group.first.engine for group in groups]),
        *([Column(heading(keys), settings, shrinks=True)] if keys else []),
        Column("mode", [group.first.mode for group in groups], 40),
        Column("W", [str(group.first.workers or "-") for group in groups], 55, right=True),
        column("CPU", seconds, lambda record: record.cpu_s, ALWAYS),
        column("memory", size, lambda record: record.peak_memory_bytes, ALWAYS),
        column("train", seconds, lambda record: record.train_s, 60),
        column("test", seconds, lambda record: record.test_s, 50),
    ]
    return table(columns, width, [None] * len(found), folds=True)


MOST_TOLD = 12  # settings of a workload whose cost is told


def book_of(prices: Path | None, usd_per_core_hour: float | None) -> PriceBook | None:
    """The price book that the command line asks for, by file or by one price; None for the prices on record."""
    if prices is not None and usd_per_core_hour is not None:
        raise TrainoffError("--prices and --usd-per-core-hour are two prices for the same thing; give one of them")
    if usd_per_core_hour is None:
        return read_prices(prices) if prices is not None else None
    if not usd_per_core_hour > 0:
        raise TrainoffError(f"--usd-per-core-hour {usd_per_core_hour:g}: a price is more than nothing")
    return PriceBook(source="--usd-per-core-hour", usd_per_core_hour=usd_per_core_hour)


def cost_boards(found: Sequence[SettingGroup], width: int) -> list[tuple[str, int, Table]]:
    """Each workload of which every trial has a price: how many settings are left out, and the cheapest ones."""
    boards = []
    for rivals in by_workload(found):
        every = [record for group in rivals for record in group.records]
        target = headline_target(rivals)
        if all(record.usd_per_hour is not None for record in every) and (own := costs(rivals, target)):
            left_out = max(0, len(own) - MOST_TOLD)
            boards.append((rivals[0].first.workload, left_out, _cost_board(own[:MOST_TOLD], target, width)))
    return boards


def _cost_board(found: Sequence[Cost], target: float | None, width: int) -> Table:
    groups = [cost.group for cost in found]
    keys = list(dict.fromkeys(key for group in groups for key in group.label if key != "workload"))
    settings = [setting([group.label.get(key, "-") for key in keys]) for group in groups]
    whole = [dollars(cost.trial) for cost in found]
    goal = "" if target is None else f"to {target_text(groups[0].first.metric, target)}"
    columns = [
        Column("engine", [group.first.engine for group in groups]),
        *([Column(heading(keys), settings, shrinks=True)] if keys else []),
        Column("mode", [group.first.mode for group in groups], 40),
        Column("W", [str(group.first.workers or "-") for group in groups], 50, right=True),
        *([Column(goal, [dollars(cost.to_target) for cost in found], right=True)] if goal else []),
        Column("training", [dollars(cost.run) for cost in found], ALWAYS, right=True),
        *([Column("whole trial", whole, 60, right=True)] if any(cost.trial is not None for cost in found) else []),
    ]
    return table(columns, width, [None] * len(found), folds=True)


SHADES = " ░▒▓█"
MARGIN = 4


def picture(record: Record, width: int) -> list[str]:
    """The lines of the picture, the first a heading; none where the record has no timeline."""
    end = max((task[1] for tasks in record.timeline.values() for task in tasks), default=0.0)
    if end <= 0:
        return []
    longest = max(map(len, record.timeline))
    bins = max(10, width - longest - MARGIN)
    most = max(map(len, record.timeline.values()))
    heading = f"who worked when: the first {most} tasks of each worker, {seconds(end)} of training"
    rows = [f"  {worker:<{longest}} {shade(tasks, end, bins)}" for worker, tasks in sorted(record.timeline.items())]
    return [heading, *rows]


def shade(tasks: Sequence[Sequence[float]], end: float, bins: int) -> str:
    """How busy a worker was in each of so many equal spans up to the end."""
    busy = [0.0] * bins
    size = end / bins
    for start, stop in tasks:
        for place in range(max(0, int(start / size)), min(bins, int(stop / size) + 1)):
            busy[place] += max(0.0, min(stop, (place + 1) * size) - max(start, place * size))
    return "".join(SHADES[min(len(SHADES) - 1, round(part / size * (len(SHADES) - 1)))] for part in busy)


SHORT = {"within tolerance": "tolerable", "different by design": "differs", "wrong": "WRONG", None: "-"}


def boards(found: Sequence[SettingGroup], width: int) -> list[tuple[str, Table]]:
    """Every workload with its board."""
    return [(own[0].first.workload, board(own, width)) for own in by_workload(found)]


def board(found: Sequence[SettingGroup], width: int) -> Table:
    """The groups of one workload, the fastest to the headline target first, failures last."""
    rows, target, metric = ranked(found), headline_target(found), found[0].first.metric

    def column(name: str, cell: Callable[[SettingGroup], str], worth: int, right: bool = True) -> Column:
        return Column(name, [cell(group) for group in rows], worth, right)

    columns = [
        *_names(rows),
        column(
            f"to {target_text(metric, target)}" if target else "to target", lambda group: _time(group, target), ALWAYS
        ),
        *([column("spread", lambda group: _spread(group, target), 35)] if _repeated(rows) else []),
        column(metric, _quality, ALWAYS),
        column("train", lambda group: seconds(group.median(_train)), 60),
        column("test", lambda group: seconds(group.median(lambda record: record.test_s)), 15),
        column("cold", lambda group: seconds(group.median(lambda record: record.cold_s)), 20),
        column("CPU", lambda group: seconds(group.median(lambda record: record.cpu_s)), 30),
        column("memory", lambda group: size(group.median(lambda record: record.peak_memory_bytes)), 25),
        column("network", lambda group: size(group.median(lambda record: record.network_bytes)), 10),
        column("result", _result, ALWAYS, right=False),
    ]
    known = [each for each in columns if each.worth == ALWAYS or any(cell != "-" for cell in each.cells)]
    return columns_table(known, width, [None if group.good else "dim" for group in rows], folds=True)


def _names(rows: Sequence[SettingGroup]) -> list[Column]:
    """The columns that say which setting a row is."""
    keys = list(dict.fromkeys(key for group in rows for key in group.label if key != "workload"))
    settings = [setting([group.label.get(key, "-") for key in keys]) for group in rows]
    several = len({group.first.workload for group in rows}) > 1
    return [
        Column("engine", [group.first.engine for group in rows]),
        *([Column("workload", [group.first.workload for group in rows], 80)] if several else []),
        *([Column(heading(keys), settings, shrinks=True)] if keys else []),
        Column("mode", [group.first.mode for group in rows], 40),
        Column("W", [str(group.first.workers or "-") for group in rows], 50, right=True),
    ]


def _time(group: SettingGroup, target: float | None) -> str:
    return seconds(group.time_to(target) if target else None)


def _spread(group: SettingGroup, target: float | None) -> str:
    """What encloses the time to the target: the interval of its median from six repetitions on, else all of them."""
    found = group.spread(target) if target else None
    return span(found.low, found.high) if found and found.n > 1 and math.isfinite(found.low) else "-"


def _repeated(rows: Sequence[SettingGroup]) -> bool:
    return any(len(group.good) > 1 for group in rows)


def _train(record: Record) -> float | None:
    return record.train_s


def _quality(group: SettingGroup) -> str:
    return quality(group.median(lambda record: record.result))


def _result(group: SettingGroup) -> str:
    """The certificate of a good group, the status of a bad one, and how many repetitions speak."""
    if not group.good:
        return group.first.status
    verdict = group.good[0].equivalence.get("verdict")
    runs = f" {len(group.good)}/{len(group.records)}" if len(group.records) > 1 else ""
    return SHORT.get(verdict, str(verdict)) + runs


def remarks(found: Sequence[SettingGroup], folder: Path) -> list[str]:
    """What must be said under the board: trials that failed, why, and where to read more."""
    said = []
    for group in found:
        for record in group.records:
            if record.status != "ok":
                log = folder_of(folder, record) / "log.txt"
                where = f" (log: {log})" if record.failed and log.exists() else ""
                said.append(f"{group.name}, seed {record.seed}: {failure(record)}{where}")
        if crowded := oversubscription(group.first):
            said.append(f"{group.name} {crowded}")
    return said


def where_the_time_went(found: Sequence[SettingGroup], width: int) -> Table | None:
    """The parts of the best few settings' time; a setting of which nothing is known is left out."""
    known = [(group, parts) for group in ranked(found) if (parts := time_split(group))][:MOST_TOLD]
    if not known:
        return None

    def column(name: str, cell: Callable[[TimeSplit], float | None], worth: int) -> Column:
        return Column(name, [seconds(cell(parts)) for _, parts in known], worth, right=True)

    columns = [
        *_names([group for group, _ in known]),
        column("start-up", lambda parts: parts.start, ALWAYS),
        column("rows", lambda parts: parts.rows, 60),
        column("feed", lambda parts: parts.feed, 70),
        column("training", lambda parts: parts.training, ALWAYS),
        column("test", lambda parts: parts.test, 20),
        column("end", lambda parts: parts.end, 10),
        column("in all", lambda parts: parts.whole, 55),
    ]
    if all(parts.feed is None for _, parts in known):
        columns = [each for each in columns if each.heading != "feed"]
    return columns_table(columns, width, ["dim"] * len(known), folds=True)


def what_the_workers_did(found: Sequence[SettingGroup], width: int) -> list[str]:
    """For every distributed setting of which it is known, how the workers spent the training."""
    told = worker_lines(ranked(found)[: 2 * MOST_TOLD])
    return [line for name, parts in told for line in broken(f"  {name}: ", parts, width)]


def broken(start: str, parts: Sequence[str], width: int) -> list[str]:
    """A name and its parts in lines of this width; of a name that leaves no room, the parts below it."""
    fits = len(start) + len(parts[0]) < width
    lines = [start + parts[0]] if fits else [start.rstrip(), f"    {parts[0]}"]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += ","
            lines.append(f"    {part}")
        else:
            lines[-1] += f", {part}"
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(common.with_json(parser))
    common.add_prices(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the board as a picture")


def execute(options: argparse.Namespace) -> int:
    book = book_of(options.prices, None)
    if options.svg:
        draw(options.folder, options.svg, book)
    if options.json:
        return as_json(options.folder, book)
    return tell(options.folder, common.console(), book)
