"""The learning curve of a record, and what is read off it."""

from __future__ import annotations

from collections.abc import Sequence


def time_to_target(train_s: Sequence[float], accuracy: Sequence[float], target: float) -> float | None:
    """Seconds of training until the target is reached and held: the next look must find it held too.

    None if that never happens: the run is censored. Reaching it at the very last look counts.
    """
    for index, reached in enumerate(accuracy):
        following = accuracy[index + 1 : index + 2]
        if reached >= target and all(later >= target for later in following):
            return train_s[index]
    return None
