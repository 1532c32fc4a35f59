"""The order of a board: which target it is judged by, and who got there first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from trainoff.analysis.figures import Figure
from trainoff.analysis.groups import SettingGroup
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record


def headline_target(groups: Sequence[SettingGroup]) -> float | None:
    """The hardest target that at least half of the groups reached; else the hardest that any reached."""
    every = {target: METRICS[group.first.metric] for group in groups for target in group.first.targets}
    targets = sorted(every, key=lambda target: every[target].badness(target))
    reached = {target: sum(group.time_to(target) is not None for group in groups) for target in targets}
    candidates = [group for group in groups if group.good]
    for enough in (max(1, math.ceil(len(candidates) / 2)), 1):
        for target in targets:
            if reached[target] >= enough:
                return target
    return None


def ranked(groups: Sequence[SettingGroup]) -> list[SettingGroup]:
    """Fastest to the headline target first, then the best, then those that failed."""
    target = headline_target(groups)

    def key(group: SettingGroup) -> tuple[bool, float, float, float, str]:
        reached = group.time_to(target) if target else None
        result = group.median(lambda record: record.result)
        badness = math.inf if result is None else METRICS[group.first.metric].badness(result)
        train = group.median(lambda record: record.train_s) or 0.0
        return not group.good, math.inf if reached is None else reached, badness, train, group.name

    return sorted(groups, key=key)


def sort_by_figure(groups: Sequence[SettingGroup], figure: Figure) -> list[SettingGroup]:
    """The groups that have a figure, the best median first."""
    values = [[value for record in group.records if (value := figure.value(record)) is not None] for group in groups]
    sign = -1 if figure.higher_is_better else 1
    known = [(sign * statistics.median(own), group) for own, group in zip(values, groups, strict=True) if own]
    return [group for _, group in sorted(known, key=lambda one: one[0])]


LEAST_PER_CENT = 10  # from here on a number is taken for a share in per cent


def check_target(target: float | None) -> None:
    """Refuse what no run can reach; 97 is taken for 97 %."""
    if target is None or 0 < target <= 1:
        return
    hint = f"did you mean {target / 100:g}?" if LEAST_PER_CENT <= target <= 100 else "give one such as 0.97"
    raise TrainoffError(f"--target {target:g}: a target is a number above 0 and at most 1; {hint}")


def not_timed(records: Iterable[Record], target: float) -> TrainoffError:
    """That nobody was timed to a target, which ones there are, and how to have this one."""
    timed = ", ".join(f"{each:g}" for each in sorted({each for record in records for each in record.targets}))
    there = f"these were: {timed}" if timed else "none was"
    return TrainoffError(
        f"--target {target:g} was not timed; {there}; `targets = [{target:g}]` in a study times this one"
    )
