"""The learning curve of a record, and what is read off it."""

from __future__ import annotations

from collections.abc import Sequence

from trainoff.records.metrics import METRICS, Metric


def time_to_target(
    train_s: Sequence[float], values: Sequence[float], target: float, metric: Metric = METRICS["accuracy"]
) -> float | None:
    """Seconds of training until the target is reached and held: the next look must find it held too.

    None if that never happens: the run is censored. Reaching it at the very last look counts.
    """
    for index in range(len(values)):
        if all(metric.reached(value, target) for value in values[index : index + 2]):
            return train_s[index]
    return None
