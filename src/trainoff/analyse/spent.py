"""Where the time of a trial went: what had to be done before training, what fed it, and what came after."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainoff.analysis.format import seconds
from trainoff.analysis.groups import Group
from trainoff.records import Record

START = ("import", "cluster_start", "compile")
ROWS = ("data_load", "ship")
MOST_TOLD = 3  # settings whose start is told in words


@dataclass(frozen=True)
class Spent:
    """Seconds of a setting's trials, each the median: `None` for what it does not do."""

    start: float  # programs, the cluster, compilers
    rows: float  # reading the rows, and bringing them to where they are needed
    feed: float | None  # waiting for rows while training, where somebody pushes them
    training: float  # without that
    test: float
    end: float

    @property
    def whole(self) -> float:
        return self.start + self.rows + (self.feed or 0.0) + self.training + self.test + self.end


def spent(group: Group) -> Spent | None:
    """Where the time of a setting went; None if nothing is known."""
    phases, feed = group.phases_s(), group.median(feed_s)
    if not phases:
        return None
    start, rows = (sum(phases.get(name, 0.0) for name in names) for names in (START, ROWS))
    training = max(0.0, phases.get("train", 0.0) - (feed or 0.0))
    return Spent(start, rows, feed, training, phases.get("test", 0.0), phases.get("teardown", 0.0))


def feed_s(record: Record) -> float | None:
    """How long the workers waited for rows that were pushed to them, on average."""
    waited = record.breakdowns.get("feeding_s")
    return statistics.fmean(waited.values()) if waited else None


def start_costs(groups: Sequence[Group]) -> list[str]:
    """For the distributed settings that took longer to start than to train, how long, in one sentence."""
    distributed = [group for group in groups if group.good and group.first.mode != "single"]
    told = [(group, found) for group in distributed if (found := spent(group))]
    slow = [(group, found) for group, found in told if found.start > found.training + (found.feed or 0.0)]
    if not slow:
        return []
    parts = []
    for group, found in slow[:MOST_TOLD]:
        feeding = f", {seconds(found.feed)} feeding" if found.feed else ""
        parts.append(
            f"{group.name} spent {seconds(found.start)} starting{feeding} and {seconds(found.training)} training"
        )
    others = len(slow) - MOST_TOLD
    more = f"; {others} more started longer than {'it' if others == 1 else 'they'} trained" if others > 0 else ""
    return [f"{'; '.join(parts)}{more}: for this little work, to start is what costs."]
