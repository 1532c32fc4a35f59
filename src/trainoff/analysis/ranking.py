"""Order the settings of a board: choose the target to rank by, and sort by the time to it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from trainoff.analysis.figures import Figure
from trainoff.analysis.groups import SettingGroup
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record


def headline_target(groups: Sequence[SettingGroup]) -> float | None:
    """Return the hardest target that at least half of the groups reached, or else the hardest that any reached."""
    metrics = {target: METRICS[group.first.metric] for group in groups for target in group.first.targets}
    targets = sorted(metrics, key=lambda target: metrics[target].badness(target))
    reached = {target: sum(group.time_to(target) is not None for group in groups) for target in targets}
    half = math.ceil(sum(bool(group.good) for group in groups) / 2)
    for enough in (max(1, half), 1):
        for target in targets:
            if reached[target] >= enough:
                return target
    return None


def ranked(groups: Sequence[SettingGroup]) -> list[SettingGroup]:
    """Sort groups by the time to the headline target, then by their result; failed ones come last."""
    target = headline_target(groups)

    def key(group: SettingGroup) -> tuple[bool, float, float, float, str]:
        reached = group.time_to(target) if target else None
        result = group.median(lambda record: record.result)
        badness = math.inf if result is None else METRICS[group.first.metric].badness(result)
        train = group.median(lambda record: record.train_s) or 0.0
        return not group.good, math.inf if reached is None else reached, badness, train, group.name

    return sorted(groups, key=key)


def sort_by_figure(groups: Sequence[SettingGroup], figure: Figure) -> list[SettingGroup]:
    """Sort the groups that have a figure by its median, the best first."""
    values = [[value for record in group.records if (value := figure.value(record)) is not None] for group in groups]
    sign = -1 if figure.higher_is_better else 1
    medians = [(sign * statistics.median(found), group) for found, group in zip(values, groups, strict=True) if found]
    return [group for _, group in sorted(medians, key=lambda pair: pair[0])]


SMALLEST_PER_CENT = 10  # a larger number than this is taken for per cent


def check_target(target: float | None) -> None:
    """Raise an error for a target that no run can reach; 97 is taken for 97 %."""
    if target is None or 0 < target <= 1:
        return
    hint = f"did you mean {target / 100:g}?" if SMALLEST_PER_CENT <= target <= 100 else "give one such as 0.97"
    raise TrainoffError(f"--target {target:g}: a target is a number above 0 and at most 1; {hint}")


def not_timed(records: Iterable[Record], target: float) -> TrainoffError:
    """Return the error for a target that was not timed: which were, and how to time this one."""
    timed = ", ".join(f"{each:g}" for each in sorted({each for record in records for each in record.targets}))
    others = f"these were: {timed}" if timed else "none was"
    return TrainoffError(
        f"--target {target:g} was not timed; {others}; `targets = [{target:g}]` in a study times this one"
    )
