"""What the emulated nodes of a trial did, each beside what it was given."""

from __future__ import annotations

from typing import Any

from trainoff.analysis.format import percent, seconds, size
from trainoff.records import Record
from trainoff.study.machines import GIB

HEADINGS = ("node", "cores", "used", "throttled", "memory", "at most", "link", "sent", "received")


def crowding(record: Record) -> str | None:
    """What a trial asked for beyond what the machine has: cores, or memory of its nodes; None if it all fits."""
    if not record.oversubscribed:
        return None
    if record.cluster != "lab":
        return f"asked for {record.workers * record.cores:g} cores and had {record.environment.get('cpus')}"
    asked = sum(node["memory_gb"] or 0 for node in record.nodes) * GIB
    return f"gave its nodes {size(asked)} of memory together and had {size(record.environment.get('memory_bytes'))}"


def node_rows(record: Record) -> list[list[str]]:
    """A row of words for every node: what it had, and what it used while the trial trained."""
    return [_row(node) for node in record.nodes]


def _row(node: dict[str, Any]) -> list[str]:
    training, link = node["training"], node["bandwidth_mbit"]
    used = training["cpu_s"] / training["seconds"] / node["cores"] if training else None
    return [
        node["name"],
        f"{node['cores']:g}",
        "-" if used is None else percent(round(used, 2)),
        seconds(training.get("throttled_s")),
        "unlimited" if node["memory_gb"] is None else size(round(node["memory_gb"] * GIB)),
        size(node["peak_memory_bytes"]),
        "unlimited" if link is None else f"{link:g} Mbit/s",
        size(training.get("sent_bytes")),
        size(training.get("received_bytes")),
    ]


def node_lines(record: Record) -> list[str]:
    """The rows as a table of text, its headings first; none where there were no emulated nodes."""
    rows = node_rows(record)
    if not rows:
        return []
    every = [list(HEADINGS), *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(HEADINGS))]
    return [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in every]
