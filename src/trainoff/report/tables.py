"""Tables for the terminal: columns that fit its width, and the table of what faults did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from trainoff.analysis import SettingGroup, by_workload
from trainoff.analysis.faults import FaultEffect, fault_effects
from trainoff.analysis.format import display_value, key_text, ratio_text, seconds, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

ALWAYS = 100  # the priority of a column that is never left out
NARROWEST = 8  # the least width of a column that may shrink
DOT = " · "


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, its cells, and its priority when not all columns fit."""

    heading: str
    cells: Sequence[str | Text]
    priority: int = ALWAYS
    right: bool = False
    shrinks: bool = False  # if the others still do not fit, by folding or with an ellipsis

    @property
    def width(self) -> int:
        cells = max((len(cell) for cell in self.cells), default=0)
        return max(cells, NARROWEST) if self.shrinks else max(cells, len(self.heading))

    @property
    def same(self) -> bool:
        """Whether all rows are the same, so that the column can be left out."""
        return len({str(cell) for cell in self.cells}) <= 1


def fit(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit; those with equal rows are left out first, then those of the lowest priority."""
    kept = list(columns)
    while _needed(kept) > width:
        optional = [column for column in kept if column.priority < ALWAYS]
        if not optional:
            break
        kept.remove(min(optional, key=lambda column: (not column.same, column.priority)))
    return kept


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def table(columns: Sequence[Column], width: int, styles: Sequence[str | None] = (), folds: bool = False) -> Table:
    """Return a table of the columns that fit, without borders; `styles` are those of its rows."""
    from rich.table import Table

    kept = fit(columns, width)
    spare = width - _needed(kept)
    result = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        needed = max(len(column.heading), column.width) if spare > 0 else column.width
        max_width = max(NARROWEST, min(needed, column.width + spare)) if column.shrinks else None
        result.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=not (column.shrinks and folds),
            overflow="fold" if folds else "ellipsis",
            max_width=max_width,
        )
    for cells, style in zip_longest(zip(*(column.cells for column in kept), strict=True), styles):
        result.add_row(*cells, style=style)
    return result


def setting(values: Sequence[object]) -> str:
    """Return the values of a setting in the order of the heading."""
    return DOT.join(value if isinstance(value, str) else display_value(value) for value in values)


def heading(keys: Sequence[str]) -> str:
    """Return the keys of a setting as a heading."""
    return DOT.join(key_text(key) for key in keys)


def settings(groups: Sequence[SettingGroup]) -> tuple[str, list[str]]:
    """Return the heading of the settings' column, and the cell of every setting."""
    keys = list(dict.fromkeys(key for group in groups for key in group.label if key != "workload"))
    return heading(keys), [setting([group.label.get(key, "-") for key in keys]) for group in groups]


MEDIANS: dict[str, tuple[str, Callable[[float | None], str], int]] = {  # field of the record, text, priority
    "train": ("train_s", seconds, 60),
    "test": ("test_s", seconds, 15),
    "cold": ("cold_s", seconds, 20),
    "CPU": ("cpu_s", seconds, 30),
    "memory": ("peak_memory_bytes", size, 25),
    "network": ("network_bytes", size, 10),
}


def fault_columns(effects: Sequence[FaultEffect]) -> list[Column]:
    """Return the columns of the table of faults of one workload."""
    groups = [effect.without_fault for effect in effects]
    title, cells = settings(groups)
    metric = groups[0].first.metric if groups else ""
    redone = ["-" if one.samples_redone is None else f"{one.samples_redone:,.0f}" for one in effects]
    took = ["-" if one.slowdown is None else f"{ratio_text(one.slowdown)}×" for one in effects]
    lost = ["-" if one.quality_lost is None else f"{one.quality_lost + 0.0:.4f}" for one in effects]
    return [
        Column("engine", [effect.group.first.engine for effect in effects]),
        *([Column(title, cells, 70)] if title else []),
        Column("mode", [effect.group.first.mode for effect in effects], 40),
        Column("fault", [effect.fault for effect in effects]),
        Column("noticed", [seconds(effect.detected_s) for effect in effects], right=True),
        Column("back", [seconds(effect.recovered_s) for effect in effects], right=True),
        Column("gap", [seconds(effect.longest_gap_s) for effect in effects], 60, right=True),
        Column("redone", redone, 50, right=True),
        Column("took", took, 90, right=True),
        Column(f"{metric} lost", lost, 80, right=True),
        Column("state", [effect.state for effect in effects]),
    ]


def fault_boards(groups: Sequence[SettingGroup], width: int) -> list[Table]:
    """Return a table for each workload with faults."""
    boards = []
    for found in by_workload(groups):
        if effects := fault_effects(found):
            failed = [all(record.status != "ok" for record in effect.group.records) for effect in effects]
            styles = ["dim" if each else None for each in failed]
            boards.append(table(fault_columns(effects), width, styles, folds=True))
    return boards
