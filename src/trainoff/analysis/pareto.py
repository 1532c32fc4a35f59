"""Pareto fronts: the settings that no other beats both in quality and in cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainoff.analysis.groups import SettingGroup
from trainoff.records import METRICS, Record

CostFunction = Callable[[Record], float | None]
COSTS: dict[str, CostFunction] = {
    "seconds": lambda record: record.train_s,
    "core-seconds": lambda record: record.cpu_s,
    "memory": lambda record: record.peak_memory_bytes,
    "bytes": lambda record: record.network_bytes,
    "money": lambda record: record.cost_usd,
}


@dataclass(frozen=True)
class Point:
    """A setting on the plane of quality and cost; both are medians."""

    group: SettingGroup
    cost: float
    quality: float
    best: bool  # whether it lies on the front: no other is better at the same cost, or as good at less


@dataclass(frozen=True)
class Front:
    """The settings of one workload by quality and one kind of cost, the cheapest first."""

    against: str  # of COSTS
    points: list[Point]


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return which points no other beats; smaller is better in both coordinates, and equal points are all kept."""
    best, last = [False] * len(points), (-math.inf, math.inf)
    for index in sorted(range(len(points)), key=points.__getitem__):
        point = points[index]
        if point[1] < last[1] or point == last:  # every point that could beat it has come before
            best[index], last = True, point
    return best


def fronts(groups: Sequence[SettingGroup], costs: Mapping[str, CostFunction] = COSTS) -> list[Front]:
    """Return a front for every kind of cost that is known, over the settings of one workload that ended well."""
    found = []
    for against, cost in costs.items():
        known = [
            (group, spent, quality)
            for group in groups
            if group.good
            and (spent := group.median(cost)) is not None
            and (quality := group.median(lambda record: record.result)) is not None
        ]
        best = pareto([(spent, METRICS[group.first.metric].badness(quality)) for group, spent, quality in known])
        points = [Point(*values, on_front) for values, on_front in zip(known, best, strict=True)]
        if points:
            found.append(Front(against, sorted(points, key=lambda point: (point.cost, not point.best))))
    return found


@dataclass(frozen=True)
class CheapestSetting:
    """The setting of one engine that reaches a target with the least CPU time."""

    target: float
    group: SettingGroup


def cheapest_settings(groups: Sequence[SettingGroup]) -> list[CheapestSetting]:
    """Return the cheapest setting of each engine for each target, the easiest target first.

    A setting counts if its median result reaches the target, and costs the CPU seconds of the whole trial. If every
    engine was tried in one setting only, there is nothing to choose and the list is empty.
    """
    engines = list(dict.fromkeys(group.first.engine for group in groups))
    if len(groups) == len(engines):
        return []
    metrics = {target: METRICS[group.first.metric] for group in groups for target in group.first.targets}
    found = []
    for target in sorted(metrics, key=lambda target: -metrics[target].badness(target)):
        for engine in engines:
            able = [group for group in groups if group.first.engine == engine and _reached(group, target)]
            if able:
                cheapest = min(able, key=lambda group: group.median(lambda record: record.cpu_s) or 0.0)
                found.append(CheapestSetting(target, cheapest))
    return found


def _reached(group: SettingGroup, target: float) -> bool:
    result = group.median(lambda record: record.result) if group.good else None
    return result is not None and METRICS[group.first.metric].reached(result, target)
