"""What faults did, as a table: engine by engine, beside the same training left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainoff.analysis import Group, Struck, by_workload, struck
from trainoff.analysis.format import seconds, times
from trainoff.report.tables import ALWAYS, Column, heading, setting, table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Told:
    """A column of the table: its heading, what it tells, what it is worth, and whether it holds figures."""

    heading: str
    cell: Callable[[Struck], str]
    worth: int = ALWAYS
    figures: bool = True


def columns(found: Sequence[Struck]) -> list[Told]:
    """What is told of the faults of one workload; what all have in common is not."""
    groups = [one.alike for one in found]
    keys = [key for key in dict.fromkeys(key for group in groups for key in group.label) if key != "workload"]
    metric = groups[0].first.metric if groups else ""
    return [
        Told("engine", lambda one: one.group.first.engine, figures=False),
        *([Told(heading(keys), lambda one: _setting(one.alike, keys), 70, figures=False)] if keys else []),
        Told("mode", lambda one: one.group.first.mode, 40, figures=False),
        Told("fault", lambda one: one.fault, figures=False),
        Told("noticed", lambda one: seconds(one.detected_s)),
        Told("back", lambda one: seconds(one.recovered_s)),
        Told("gap", lambda one: seconds(one.longest_gap_s), 60),
        Told("redone", lambda one: _redone(one.samples_redone), 50),
        Told("took", lambda one: "-" if one.slowdown is None else f"{times(one.slowdown)}×", 90),
        Told(f"{metric} lost", lambda one: _lost(one.quality_lost), 80),
        Told("state", lambda one: one.state, figures=False),
    ]


def fault_boards(groups: Sequence[Group], width: int) -> list[Table]:
    """One table per workload; none where there were no faults."""
    return [_board(found, width) for own in by_workload(groups) if (found := struck(own))]


def _board(found: Sequence[Struck], width: int) -> Table:
    made = [
        Column(told.heading, [told.cell(one) for one in found], told.worth, told.figures) for told in columns(found)
    ]
    return table(made, width, ["dim" if "ok" not in _statuses(one) else None for one in found], folds=True)


def _statuses(one: Struck) -> set[str]:
    return {record.status for record in one.group.records}


def _setting(group: Group, keys: Sequence[str]) -> str:
    return setting([group.label.get(key, "-") for key in keys])


def _redone(samples: float | None) -> str:
    return "-" if samples is None else f"{samples:,.0f}"


def _lost(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4f}"
