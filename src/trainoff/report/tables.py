"""Tables for the terminal: columns that fit its width, and the table of what faults did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainoff.analysis import FaultEffect, SettingGroup, by_workload, fault_effects
from trainoff.analysis.format import display_value, key_text, ratio_text, seconds

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


ALWAYS = 100  # the worth of a column that is never left out
NARROWEST = 8  # what is left of the one column that may shrink
DOT = " · "


@dataclass(frozen=True)
class Column:
    """One column: its heading, its cells, and what it is worth when room is scarce."""

    heading: str
    cells: Sequence[str | Text]
    worth: int = ALWAYS
    right: bool = False
    shrinks: bool = False  # gives way last of all, by folding or by an ellipsis

    @property
    def width(self) -> int:
        cells = max((len(cell) for cell in self.cells), default=0)
        return max(cells, NARROWEST) if self.shrinks else max(cells, len(self.heading))

    @property
    def same(self) -> bool:
        """Whether all rows say the same, so that leaving it out loses nothing."""
        return len({str(cell) for cell in self.cells}) <= 1


def fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that have room: first those go that say the same in every row, then the least worth."""
    kept = list(columns)
    while _needed(kept) > width:
        loose = [column for column in kept if column.worth < ALWAYS]
        if not loose:
            break
        kept.remove(min(loose, key=lambda column: (not column.same, column.worth)))
    return kept


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def table(columns: Sequence[Column], width: int, styles: Sequence[str | None], folds: bool = False) -> Table:
    """A table without lines of the columns that fit; one that must shrink folds or is cut short."""
    from rich.table import Table

    kept = fit(columns, width)
    spare = width - _needed(kept)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        room = max(len(column.heading), column.width) if spare > 0 else column.width
        narrow = max(NARROWEST, min(room, column.width + spare)) if column.shrinks else None
        made.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=not (column.shrinks and folds),
            overflow="fold" if folds else "ellipsis",
            max_width=narrow,
        )
    for row, style in enumerate(styles):
        made.add_row(*(column.cells[row] for column in kept), style=style)
    return made


def setting(values: Sequence[object]) -> str:
    """What sets a trial apart, as values in the order of the heading; a dash for what it has not."""
    return DOT.join(value if isinstance(value, str) else display_value(value) for value in values)


def heading(keys: Sequence[str]) -> str:
    """The keys of a setting, as a heading."""
    return DOT.join(key_text(key) for key in keys)


@dataclass(frozen=True)
class FaultRow:
    """A column of the table: its heading, what it tells, what it is worth, and whether it holds figures."""

    heading: str
    cell: Callable[[FaultEffect], str]
    worth: int = ALWAYS
    figures: bool = True


def columns(found: Sequence[FaultEffect]) -> list[FaultRow]:
    """What is told of the faults of one workload; what all have in common is not."""
    groups = [one.without_fault for one in found]
    keys = [key for key in dict.fromkeys(key for group in groups for key in group.label) if key != "workload"]
    metric = groups[0].first.metric if groups else ""
    return [
        FaultRow("engine", lambda one: one.group.first.engine, figures=False),
        *([FaultRow(heading(keys), lambda one: _setting(one.without_fault, keys), 70, figures=False)] if keys else []),
        FaultRow("mode", lambda one: one.group.first.mode, 40, figures=False),
        FaultRow("fault", lambda one: one.fault, figures=False),
        FaultRow("noticed", lambda one: seconds(one.detected_s)),
        FaultRow("back", lambda one: seconds(one.recovered_s)),
        FaultRow("gap", lambda one: seconds(one.longest_gap_s), 60),
        FaultRow("redone", lambda one: _redone(one.samples_redone), 50),
        FaultRow("took", lambda one: "-" if one.slowdown is None else f"{ratio_text(one.slowdown)}×", 90),
        FaultRow(f"{metric} lost", lambda one: _lost(one.quality_lost), 80),
        FaultRow("state", lambda one: one.state, figures=False),
    ]


def fault_boards(groups: Sequence[SettingGroup], width: int) -> list[Table]:
    """One table per workload; none where there were no faults."""
    return [_board(found, width) for own in by_workload(groups) if (found := fault_effects(own))]


def _board(found: Sequence[FaultEffect], width: int) -> Table:
    made = [
        Column(told.heading, [told.cell(one) for one in found], told.worth, told.figures) for told in columns(found)
    ]
    return table(made, width, ["dim" if "ok" not in _statuses(one) else None for one in found], folds=True)


def _statuses(one: FaultEffect) -> set[str]:
    return {record.status for record in one.group.records}


def _setting(group: SettingGroup, keys: Sequence[str]) -> str:
    return setting([group.label.get(key, "-") for key in keys])


def _redone(samples: float | None) -> str:
    return "-" if samples is None else f"{samples:,.0f}"


def _lost(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4f}"
