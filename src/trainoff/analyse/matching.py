"""Which settings belong beside each other: of two engines in one folder, or of two folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from trainoff.analysis.groups import Group, setting_of

Pair = tuple[Group, Group]


def of_engines(groups: Sequence[Group], one: str, other: str) -> list[Pair]:
    """Every setting of one engine with those of another that differ in nothing that both can be told.

    Where the other was tried with the same number of workers, or even in the same mode, only that one is meant.
    """
    ours, theirs = ([group for group in groups if group.first.engine == name] for name in (one, other))
    return [(a, b) for a in ours for b in _nearest(a, [b for b in theirs if _alike(a, b)])]


def _alike(a: Group, b: Group) -> bool:
    free = {*a.first.settled, *b.first.settled}  # an engine that has no choice is compared all the same
    shared = [key for key in a.label if key in b.label and key not in free]
    return a.first.workload == b.first.workload and all(a.label[key] == b.label[key] for key in shared)


def _nearest(a: Group, others: Sequence[Group]) -> Sequence[Group]:
    kinds: list[Callable[[Group], object]] = [
        lambda group: (group.first.workers, group.first.mode),
        lambda group: group.first.workers,
    ]
    for kind in kinds:
        if found := [b for b in others if kind(b) == kind(a)]:
            return found
    return others


def of_folders(first: Sequence[Group], second: Sequence[Group]) -> list[Pair]:
    """The settings that are in both folders, each as it is in the second and in the first."""
    before = {_key(group): group for group in first}
    return [(group, before[_key(group)]) for group in second if _key(group) in before]


def _key(group: Group) -> str:
    return json.dumps(setting_of(group.first), sort_keys=True, default=str)
