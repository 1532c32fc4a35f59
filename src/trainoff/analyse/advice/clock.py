"""The clocks by which advice is given: training until the target, or all of it from the first process on."""

from __future__ import annotations

import math

from trainoff.analysis.figures import Figure, time_to
from trainoff.analysis.format import mark, seconds
from trainoff.records import Record

COLD = "cold_to_target"


def clock(target: float, metric: str, cold: bool) -> Figure:
    """The seconds until a target is reached: of training, or from cold."""
    return cold_to(target, metric) if cold else time_to(target, metric)


def cold_to(target: float, metric: str) -> Figure:
    """What a trial takes that ends at the target: start, rows, training until then, test and end."""
    trained = time_to(target, metric).value

    def value(record: Record) -> float | None:
        reached, besides = trained(record), besides_training(record)
        if reached is None or math.isinf(reached):
            return reached
        return None if besides is None else besides + reached

    goal = mark(metric, target)
    words = f"time from cold to {goal}"
    neutral, better = f"took {{ratio}} times as long as {{other}} from cold to {goal}", "{ratio} times faster"
    return Figure(
        COLD, words, value, seconds, neutral, f"was {better} than {{other}} from cold to {goal}", target=target
    )


def besides_training(record: Record) -> float | None:
    """The seconds of a trial in which it did not train and nobody looked at its weights; None where not known."""
    if record.cold_s is None or record.train_s is None:
        return None
    return max(record.cold_s - record.train_s - (record.pause_s or 0.0), 0.0)


def lost(record: Record, cold: bool) -> float | None:
    """What a run took that did not get there."""
    return record.cold_s if cold else record.train_s
