"""Tables for the terminal: columns that fit its width, and the table of what faults did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainoff.analysis import SettingGroup, by_workload
from trainoff.analysis.faults import FaultEffect, fault_effects
from trainoff.analysis.format import display_value, key_text, ratio_text, seconds

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


def table(columns: Sequence[Column], width: int, styles: Sequence[str | None], folds: bool = False) -> Table:
    """Return a table of the columns that fit, without borders."""
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
    for row, style in enumerate(styles):
        result.add_row(*(column.cells[row] for column in kept), style=style)
    return result


def setting(values: Sequence[object]) -> str:
    """Return the values of a setting in the order of the heading."""
    return DOT.join(value if isinstance(value, str) else display_value(value) for value in values)


def heading(keys: Sequence[str]) -> str:
    """Return the keys of a setting as a heading."""
    return DOT.join(key_text(key) for key in keys)


@dataclass(frozen=True)
class FaultColumn:
    """A column of the table of faults: its heading, its text, its priority, and whether it is numeric."""

    heading: str
    cell: Callable[[FaultEffect], str]
    priority: int = ALWAYS
    figures: bool = True


def columns(effects: Sequence[FaultEffect]) -> list[FaultColumn]:
    """Return the columns of the table of faults of one workload."""
    groups = [effect.without_fault for effect in effects]
    keys = [key for key in dict.fromkeys(key for group in groups for key in group.label) if key != "workload"]
    metric = groups[0].first.metric if groups else ""

    def setting_text(effect: FaultEffect) -> str:
        return setting([effect.without_fault.label.get(key, "-") for key in keys])

    return [
        FaultColumn("engine", lambda effect: effect.group.first.engine, figures=False),
        *([FaultColumn(heading(keys), setting_text, 70, figures=False)] if keys else []),
        FaultColumn("mode", lambda effect: effect.group.first.mode, 40, figures=False),
        FaultColumn("fault", lambda effect: effect.fault, figures=False),
        FaultColumn("noticed", lambda effect: seconds(effect.detected_s)),
        FaultColumn("back", lambda effect: seconds(effect.recovered_s)),
        FaultColumn("gap", lambda effect: seconds(effect.longest_gap_s), 60),
        FaultColumn("redone", lambda effect: _redone(effect.samples_redone), 50),
        FaultColumn("took", lambda effect: "-" if effect.slowdown is None else f"{ratio_text(effect.slowdown)}×", 90),
        FaultColumn(f"{metric} lost", lambda effect: _lost(effect.quality_lost), 80),
        FaultColumn("state", lambda effect: effect.state, figures=False),
    ]


def fault_boards(groups: Sequence[SettingGroup], width: int) -> list[Table]:
    """Return a table for each workload with faults."""
    return [_board(effects, width) for found in by_workload(groups) if (effects := fault_effects(found))]


def _board(effects: Sequence[FaultEffect], width: int) -> Table:
    shown = [
        Column(one.heading, [one.cell(effect) for effect in effects], one.priority, one.figures)
        for one in columns(effects)
    ]
    styles = ["dim" if all(record.status != "ok" for record in effect.group.records) else None for effect in effects]
    return table(shown, width, styles, folds=True)


def _redone(samples: float | None) -> str:
    return "-" if samples is None else f"{samples:,.0f}"


def _lost(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4f}"
