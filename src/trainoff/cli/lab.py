"""`trainoff lab`: what its commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainoff.analysis.format import size

if TYPE_CHECKING:
    from rich.console import Console

NONE = "no lab is up; `trainoff lab up --nodes 3 --cores 0.2` starts one"
COLUMNS = ("node", "address", "cores", "busy", "memory", "limit", "processes", "sent", "received")


def tell_status(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The nodes of every lab, one below the other."""
    from rich.table import Table

    if not rows:
        console.print(NONE)
        return
    for lab in dict.fromkeys(row["lab"] for row in rows):
        own = [row for row in rows if row["lab"] == lab]
        console.print(f"{own[0]['about']} ({lab})" if own[0]["about"] != "lab" else f"lab ({lab})", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("node", "address") else "right")
        for row in own:
            table.add_row(*_cells(row))
        console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    limit = row["memory_limit_bytes"]
    figures = [f"{row['cores']:g}", f"{row['busy_cores']:.2f}", size(row["memory_bytes"])]
    counts = [size(limit) if limit else "none", str(row["processes"])]
    return [row["node"], row["address"], *figures, *counts, size(row["sent_bytes"]), size(row["received_bytes"])]


def tell_down(gone: Sequence[str], running: Sequence[str], console: Console) -> None:
    """What is gone, and what was left alone."""
    console.print(f"{len(gone)} lab{'s' if len(gone) != 1 else ''} removed" if gone else "no lab was up")
    for about in running:
        console.print(f"{about} is a running trial's; it goes when the trial ends")
