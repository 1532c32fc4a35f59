"""What accuracy costs, as a table: for each target and engine the setting that got there with the least CPU time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainoff.analysis import Group, Price, by_workload, prices
from trainoff.analysis.format import mark, seconds, size
from trainoff.records import Record
from trainoff.report.columns import ALWAYS, Column, heading, setting, table

if TYPE_CHECKING:
    from rich.table import Table


def price_boards(found: Sequence[Group], width: int) -> list[Table]:
    """One table per workload; none where no engine was tried in several settings."""
    return [_board(own, width) for groups in by_workload(found) if (own := prices(groups))]


def _board(found: Sequence[Price], width: int) -> Table:
    groups = [price.group for price in found]
    keys = list(dict.fromkeys(key for group in groups for key in group.label if key != "workload"))
    settings = [setting([group.label.get(key, "-") for key in keys]) for group in groups]

    def column(
        name: str, told: Callable[[float | None], str], value: Callable[[Record], float | None], worth: int
    ) -> Column:
        return Column(name, [told(group.median(value)) for group in groups], worth, right=True)

    columns = [
        Column("at least", [mark(price.group.first.metric, price.target) for price in found]),
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
