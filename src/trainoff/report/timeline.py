"""A picture of who worked when: a line per worker, darker where it was busier."""

from __future__ import annotations

from collections.abc import Sequence

from trainoff.analysis.format import seconds
from trainoff.records import Record

SHADES = " ░▒▓█"
MARGIN = 4


def picture(record: Record, width: int) -> list[str]:
    """The lines of the picture, the first a heading; none where the record has no timeline."""
    end = max((task[1] for tasks in record.timeline.values() for task in tasks), default=0.0)
    if end <= 0:
        return []
    longest = max(map(len, record.timeline))
    bins = max(10, width - longest - MARGIN)
    most = max(map(len, record.timeline.values()))
    heading = f"who worked when: the first {most} tasks of each worker, {seconds(end)} of training"
    rows = [f"  {worker:<{longest}} {shade(tasks, end, bins)}" for worker, tasks in sorted(record.timeline.items())]
    return [heading, *rows]


def shade(tasks: Sequence[Sequence[float]], end: float, bins: int) -> str:
    """How busy a worker was in each of so many equal spans up to the end."""
    busy = [0.0] * bins
    size = end / bins
    for start, stop in tasks:
        for place in range(max(0, int(start / size)), min(bins, int(stop / size) + 1)):
            busy[place] += max(0.0, min(stop, (place + 1) * size) - max(start, place * size))
    return "".join(SHADES[min(len(SHADES) - 1, round(part / size * (len(SHADES) - 1)))] for part in busy)
