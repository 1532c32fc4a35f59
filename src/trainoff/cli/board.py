"""The leader board, in 80 columns: who got there first, and what it took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import Group, Spent, by_workload, failure, headline_target, ranked, spent, worker_lines
from trainoff.analysis.bottleneck import crowding
from trainoff.analysis.format import mark, quality, seconds, size, span
from trainoff.records import Record, folder_of
from trainoff.report.tables import ALWAYS, Column, heading, setting
from trainoff.report.tables import table as columns_table

if TYPE_CHECKING:
    from rich.table import Table

MOST_TOLD = 12  # groups whose time is told in words
SHORT = {"within tolerance": "tolerable", "different by design": "differs", "wrong": "WRONG", None: "-"}


def boards(found: Sequence[Group], width: int) -> list[tuple[str, Table]]:
    """Every workload with its board."""
    return [(own[0].first.workload, board(own, width)) for own in by_workload(found)]


def board(found: Sequence[Group], width: int) -> Table:
    """The groups of one workload, the fastest to the headline target first, failures last."""
    rows, target, metric = ranked(found), headline_target(found), found[0].first.metric

    def column(name: str, cell: Callable[[Group], str], worth: int, right: bool = True) -> Column:
        return Column(name, [cell(group) for group in rows], worth, right)

    columns = [
        *_names(rows),
        column(f"to {mark(metric, target)}" if target else "to target", lambda group: _time(group, target), ALWAYS),
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


def _names(rows: Sequence[Group]) -> list[Column]:
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


def _time(group: Group, target: float | None) -> str:
    return seconds(group.time_to(target) if target else None)


def _spread(group: Group, target: float | None) -> str:
    """What encloses the time to the target: the interval of its median from six repetitions on, else all of them."""
    found = group.spread(target) if target else None
    return span(found.low, found.high) if found and found.n > 1 and math.isfinite(found.low) else "-"


def _repeated(rows: Sequence[Group]) -> bool:
    return any(len(group.good) > 1 for group in rows)


def _train(record: Record) -> float | None:
    return record.train_s


def _quality(group: Group) -> str:
    return quality(group.median(lambda record: record.result))


def _result(group: Group) -> str:
    """The certificate of a good group, the status of a bad one, and how many repetitions speak."""
    if not group.good:
        return group.first.status
    verdict = group.good[0].equivalence.get("verdict")
    runs = f" {len(group.good)}/{len(group.records)}" if len(group.records) > 1 else ""
    return SHORT.get(verdict, str(verdict)) + runs


def remarks(found: Sequence[Group], folder: Path) -> list[str]:
    """What must be said under the board: trials that failed, why, and where to read more."""
    said = []
    for group in found:
        for record in group.records:
            if record.status != "ok":
                log = folder_of(folder, record) / "log.txt"
                where = f" (log: {log})" if record.failed and log.exists() else ""
                said.append(f"{group.name}, seed {record.seed}: {failure(record)}{where}")
        if crowded := crowding(group.first):
            said.append(f"{group.name} {crowded}")
    return said


def where_the_time_went(found: Sequence[Group], width: int) -> Table | None:
    """The parts of the best few settings' time; a setting of which nothing is known is left out."""
    known = [(group, parts) for group in ranked(found) if (parts := spent(group))][:MOST_TOLD]
    if not known:
        return None

    def column(name: str, cell: Callable[[Spent], float | None], worth: int) -> Column:
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


def what_the_workers_did(found: Sequence[Group], width: int) -> list[str]:
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
