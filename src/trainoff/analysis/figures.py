"""The figures by which settings are compared: what a record says of each, and how a difference is put into words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from trainoff.analysis.format import dollars, seconds, size, target_text
from trainoff.records import Record

TIME_TO_TARGET = "time_to_target"
NO_SAY = ("unsupported", "interrupted")  # how a trial ends that says nothing of the engine


@dataclass(frozen=True)
class Figure:
    """One figure of a record, and its label. `ratio` is the first one's figure as a multiple of the other's."""

    name: str  # as `--figure` and JSON have it
    label: str
    value: Callable[[Record], float | None]  # None: this record does not say; infinite: it never got there
    format: Callable[[float | None], str]
    neutral: str  # "took {ratio} times as long as {other}"
    better: str  # the same where the first one is ahead; here `ratio` is at least 1
    higher_is_better: bool = False
    target: float | None = None


def time_to(target: float, metric: str) -> Figure:
    """The training time to a target; a run that failed or never got there took for ever."""

    def value(record: Record) -> float | None:
        if record.unfinished or record.status in NO_SAY or str(target) not in record.time_to_target:
            return None
        reached = record.time_to_target[str(target)] if record.status == "ok" else None
        return math.inf if reached is None else reached

    goal = target_text(metric, target)
    neutral, better = f"took {{ratio}} times as long as {{other}} to {goal}", "{ratio} times faster than {other}"
    return Figure(TIME_TO_TARGET, f"time to {goal}", value, seconds, neutral, f"was {better} to {goal}", target=target)


def _of_good(name: str) -> Callable[[Record], float | None]:
    """What a trial says that ended well; what a failed one used is not what the work takes."""
    read = attrgetter(name)
    return lambda record: read(record) if record.status == "ok" else None


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}/s"


def _seconds(name: str, words: str, what: str) -> Figure:
    neutral, better = f"took {{ratio}} times as long as {{other}} {what}", "was {ratio} times faster than {other}"
    return Figure(name, words, _of_good(name), seconds, neutral, f"{better} {what}")


def _use(name: str, words: str, told: Callable[[float | None], str]) -> Figure:
    better = f"used {{ratio}} times less {words} than {{other}}"
    return Figure(name, words, _of_good(name), told, f"used {{ratio}} times the {words} of {{other}}", better)


FIGURES = {
    figure.name: figure
    for figure in (
        _seconds("train_s", "training time", "to train"),
        _seconds("cold_s", "time of the whole trial", "from start to end"),
        _use("cpu_s", "CPU time", seconds),
        _use("peak_memory_bytes", "memory", size),
        _use("network_bytes", "network traffic", size),
        _use("cost_usd", "money", dollars),
        Figure(
            "samples_per_s",
            "samples per second",
            _of_good("samples_per_s"),
            _rate,
            "trained on {ratio} times the samples per second of {other}",
            "trained on {ratio} times the samples per second of {other}",
            higher_is_better=True,
        ),
    )
}
