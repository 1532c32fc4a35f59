"""What accuracy costs: for each engine and target the setting that got there with the least CPU time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainoff.analysis.groups import Group
from trainoff.records import METRICS


@dataclass(frozen=True)
class Price:
    """The cheapest way of one engine to a target."""

    target: float
    group: Group


def prices(groups: Sequence[Group]) -> list[Price]:
    """The cheapest settings, the easiest target first; empty unless some engine was tried in several settings.

    A setting counts if its final result reached the target in the median, and costs the whole trial's CPU seconds.
    """
    engines = list(dict.fromkeys(group.first.engine for group in groups))
    if len(groups) == len(engines):
        return []
    every = {target: METRICS[group.first.metric] for group in groups for target in group.first.targets}
    found = []
    for target in sorted(every, key=lambda target: -every[target].badness(target)):
        for engine in engines:
            own = [group for group in groups if group.first.engine == engine and _reached(group, target)]
            if own:
                found.append(Price(target, min(own, key=_cpu)))
    return found


def _reached(group: Group, target: float) -> bool:
    result = group.median(lambda record: record.result) if group.good else None
    return result is not None and METRICS[group.first.metric].reached(result, target)


def _cpu(group: Group) -> float:
    return group.median(lambda record: record.cpu_s) or 0.0
