"""What each emulated node was and did, from the kernel's counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainoff.runner.events import Event, Story
from trainoff.study.nodes import NodeSpec

COUNTED = ("cpu_s", "throttled_s", "sent_bytes", "received_bytes")  # they only grow


def book_nodes(specs: Sequence[NodeSpec], story: Story) -> list[dict[str, Any]]:
    """For every node what it was given, what it used in all, and what it used while the trial trained."""
    return [_node(number, spec, story) for number, spec in enumerate(specs) if story.nodes.get(number)]


def _node(number: int, spec: NodeSpec, story: Story) -> dict[str, Any]:
    rows = story.nodes[number]
    last = rows[-1]
    return {
        "name": f"node-{number}",
        **spec.__dict__,
        **{name: last[name] for name in COUNTED},
        "peak_memory_bytes": max(row["peak_memory_bytes"] for row in rows),
        "oom_kills": last["oom_kills"],
        "training": _while_training(rows, story),
    }


def _while_training(rows: Sequence[Event], story: Story) -> dict[str, float]:
    start, end = story.train_start, story.train_end
    if start is None or end is None or end <= start:
        return {}
    used = {name: round(_between(rows, name, start, end), 4) for name in COUNTED}
    return {"seconds": round(end - start, 4), **used}


def _between(rows: Sequence[Event], name: str, start: float, end: float) -> float:
    """By how much a figure grew between two moments."""
    first, last = np.interp([start, end], [row["tick"] for row in rows], [row[name] for row in rows])
    return float(last - first)
