"""The figures by which settings are compared: their values in a record, and the sentences about their ratio."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from trainoff.analysis.format import dollars, seconds, size, target_text
from trainoff.records import Record

TIME_TO_TARGET = "time_to_target"
NO_EVIDENCE = ("unsupported", "interrupted")  # statuses that say nothing about the engine


@dataclass(frozen=True)
class Figure:
    """One figure of a record. In its phrases, `ratio` is the first setting's figure as a multiple of the other's."""

    name: str  # as `--figure` and JSON have it
    label: str
    value: Callable[[Record], float | None]  # None: not in this record; infinite: the target was never reached
    format: Callable[[float | None], str]
    neutral: str  # "took {ratio} times as long as {other}"
    better: str  # the phrase if the first setting is ahead; here `ratio` is at least 1
    higher_is_better: bool = False
    target: float | None = None


def time_to(target: float, metric: str) -> Figure:
    """Return the training time to a target; it is infinite for a run that failed or never reached the target."""

    def value(record: Record) -> float | None:
        if record.unfinished or record.status in NO_EVIDENCE or str(target) not in record.time_to_target:
            return None
        reached = record.time_to_target[str(target)] if record.status == "ok" else None
        return math.inf if reached is None else reached

    to = f"to {target_text(metric, target)}"
    return time_figure(TIME_TO_TARGET, f"time {to}", to, value, target)


def time_figure(
    name: str, label: str, what: str, value: Callable[[Record], float | None], target: float | None = None
) -> Figure:
    """Return a figure in seconds; `what` ends its phrases, such as `to train`."""
    neutral = f"took {{ratio}} times as long as {{other}} {what}"
    better = f"was {{ratio}} times faster than {{other}} {what}"
    return Figure(name, label, value, seconds, neutral, better, target=target)


def _of_good(name: str) -> Callable[[Record], float | None]:
    """Read a field of trials that ended well; what a failed one used is not what the work takes."""
    read = attrgetter(name)
    return lambda record: read(record) if record.status == "ok" else None


def _use(name: str, label: str, text: Callable[[float | None], str]) -> Figure:
    better = f"used {{ratio}} times less {label} than {{other}}"
    return Figure(name, label, _of_good(name), text, f"used {{ratio}} times the {label} of {{other}}", better)


_RATE_PHRASE = "trained on {ratio} times the samples per second of {other}"
FIGURES = {
    figure.name: figure
    for figure in (
        time_figure("train_s", "training time", "to train", _of_good("train_s")),
        time_figure("cold_s", "time of the whole trial", "from start to end", _of_good("cold_s")),
        _use("cpu_s", "CPU time", seconds),
        _use("peak_memory_bytes", "memory", size),
        _use("network_bytes", "network traffic", size),
        _use("cost_usd", "money", dollars),
        Figure(
            "samples_per_s", "samples per second", _of_good("samples_per_s"),
            lambda value: "-" if value is None else f"{value:,.0f}/s",
            _RATE_PHRASE, _RATE_PHRASE, higher_is_better=True,
        ),
    )
}  # fmt: skip
