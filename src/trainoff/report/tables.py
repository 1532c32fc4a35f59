"""Tables that fit: when there is no room for all columns, the least worth goes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainoff.analysis.format import called, shown

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
    return DOT.join(value if isinstance(value, str) else shown(value) for value in values)


def heading(keys: Sequence[str]) -> str:
    """The keys of a setting, as a heading."""
    return DOT.join(called(key) for key in keys)
