"""What training costs in money, as tables, and the price book by which it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import Cost, Group, by_workload, costs, headline_target
from trainoff.analysis.format import dollars, mark
from trainoff.errors import TrainoffError
from trainoff.report.columns import ALWAYS, Column, heading, setting, table
from trainoff.study.prices import PriceBook, read_prices

if TYPE_CHECKING:
    from rich.table import Table

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


def cost_boards(found: Sequence[Group], width: int) -> list[tuple[str, int, Table]]:
    """Each workload of which every trial has a price: how many settings are left out, and the cheapest ones."""
    boards = []
    for groups in by_workload(found):
        every = [record for group in groups for record in group.records]
        target = headline_target(groups)
        if all(record.usd_per_hour is not None for record in every) and (own := costs(groups, target)):
            left_out = max(0, len(own) - MOST_TOLD)
            boards.append((groups[0].first.workload, left_out, _board(own[:MOST_TOLD], target, width)))
    return boards


def _board(found: Sequence[Cost], target: float | None, width: int) -> Table:
    groups = [cost.group for cost in found]
    keys = list(dict.fromkeys(key for group in groups for key in group.label if key != "workload"))
    settings = [setting([group.label.get(key, "-") for key in keys]) for group in groups]
    whole = [dollars(cost.trial) for cost in found]
    goal = "" if target is None else f"to {mark(groups[0].first.metric, target)}"
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
