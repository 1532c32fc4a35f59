"""What the size of a batch does: to the speed, and to what is learnt from every sample."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainoff.analysis.format import count, quality
from trainoff.analysis.groups import Group, setting_of

LEAST = 3  # sizes of a batch that make a comparison
MOST = 8  # comparisons; more than that nobody reads


def batch_lines(groups: Sequence[Group]) -> list[str]:
    """For every setting that was tried with several batch sizes, which was fastest and what each led to."""
    families: dict[str, list[Group]] = {}
    for group in groups:
        if group.good and "batch_size" in group.first.params and group.first.samples_seen is not None:
            families.setdefault(_family(group), []).append(group)
    compared = [own for own in families.values() if len({_batch(group) for group in own}) >= LEAST]
    return [_sentence(own) for own in compared] if len(compared) <= MOST else []


def _batch(group: Group) -> int:
    """The rows of a batch; there are no more than the training set has."""
    size, rows = int(group.first.params["batch_size"]), group.first.dataset.get("train_rows")
    return min(size, rows) if rows else size


def _family(group: Group) -> str:
    rest = {key: value for key, value in setting_of(group.first).items() if key != "batch_size"}
    return json.dumps(rest, sort_keys=True, default=str)


def _sentence(own: Sequence[Group]) -> str:
    ordered = sorted(own, key=_batch)
    first = ordered[0].first
    speeds = {_batch(group): group.median(lambda record: record.samples_per_s) or 0.0 for group in ordered}
    fastest = max(speeds, key=speeds.__getitem__)
    others = ", ".join(f"{batch:,}: {speed:,.0f}" for batch, speed in speeds.items() if batch != fastest)
    where = f"{first.engine} ({first.mode}, {count(first.workers, 'worker')}) on {first.workload}"
    return (
        f"{where}: batches of {fastest:,} were fastest, {speeds[fastest]:,.0f} samples/s ({others}); {_learnt(ordered)}"
    )


def _learnt(ordered: Sequence[Group]) -> str:
    """What came of the samples, batch by batch."""
    seen = {group.first.samples_seen for group in ordered}
    results = {_batch(group): group.median(lambda record: record.result) for group in ordered}
    metric = ordered[0].first.metric
    told = ", ".join(f"{quality(result)} with {batch:,}" for batch, result in results.items())
    if len(seen) == 1:
        return f"{metric} after the same {seen.pop():,} samples: {told}."
    return f"{metric} at the end, after unequal numbers of samples: {told}."
