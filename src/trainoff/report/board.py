"""The leader board, in 80 columns: who got there first, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainoff.analyse import Group, failure, groups, headline_target, ranked
from trainoff.analyse.words import seconds, size
from trainoff.records import Record

if TYPE_CHECKING:
    from rich.table import Table

SHORT = {"within tolerance": "tolerable", "different by design": "differs", "wrong": "WRONG", None: "-"}


def boards(records: Sequence[Record]) -> list[Table]:
    """One board per workload."""
    by_workload: dict[str, list[Group]] = {}
    for group in groups(records):
        by_workload.setdefault(group.first.workload, []).append(group)
    return [board(found) for found in by_workload.values()]


def board(found: Sequence[Group]) -> Table:
    """The groups of one workload, the fastest to the headline target first, failures last."""
    from rich.table import Table

    target = headline_target(found)
    labels = list(dict.fromkeys(key for group in found for key in group.label if key != "workload"))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("engine", no_wrap=True)
    for label in labels:
        table.add_column(label.replace("_", " "), justify="right")
    table.add_column("mode", no_wrap=True)
    table.add_column("W", justify="right")
    for heading in (
        f"to {target:.0%}" if target else "to target",
        "accuracy",
        "train",
        "cold",
        "CPU",
        "memory",
        "network",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for group in ranked(found):
        table.add_row(*_cells(group, target, labels), style=None if group.good else "dim")
    return table


def _cells(group: Group, target: float | None, labels: Sequence[str]) -> list[str]:
    first = group.first
    time = group.time_to(target) if target else None
    accuracy = group.median(lambda record: record.test_accuracy)
    network = group.median(lambda record: record.network_bytes)
    figures = [
        seconds(time),
        f"{accuracy:.4f}" if accuracy is not None else "-",
        seconds(group.median(lambda record: record.train_s)),
        seconds(group.median(lambda record: record.cold_s)),
        seconds(group.median(lambda record: record.cpu_s)),
        size(group.median(lambda record: record.peak_memory_bytes)),
        size(network),
    ]
    shown = [_value(group.label[label]) if label in group.label else "-" for label in labels]
    return [first.engine, *shown, first.mode, str(first.workers), *figures, _result(group)]


def _value(value: object) -> str:
    return "all" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _result(group: Group) -> str:
    """The certificate of a good group, the status of a bad one, and how many repetitions speak."""
    if not group.good:
        return group.first.status
    verdict = group.good[0].equivalence.get("verdict")
    runs = f" {len(group.good)}/{len(group.records)}" if len(group.records) > 1 else ""
    return SHORT.get(verdict, str(verdict)) + runs


def remarks(records: Sequence[Record]) -> list[str]:
    """What must be said under the board: trials that failed, and why."""
    bad = [record for record in records if record.status != "ok"]
    return [f"{record.engine}, seed {record.seed}: {failure(record)}" for record in bad]


def where_the_time_went(found: Sequence[Group]) -> list[str]:
    """For each engine, its phases, the longest first."""
    lines = []
    for group in ranked(found):
        spent = sorted(((value, name) for name, value in group.phases_s().items()), reverse=True)
        told = ", ".join(f"{name} {seconds(value)}" for value, name in spent if value >= 0.01)
        if told:
            lines.append(f"{group.name}: {told}")
    return lines
