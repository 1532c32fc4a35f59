"""The target that a person asks for: a share that a run can reach, and one that was timed."""

from __future__ import annotations

from collections.abc import Iterable

from trainoff.errors import TrainoffError
from trainoff.records import Record

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
