"""The record of one trial, field by field. docs/records.md explains each; a test keeps the two together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1


MEASURED, PUBLISHED = "measured", "published"  # the kinds of records
BY_HAND = "by hand: "  # prefix of notes about what was done to a trial's nodes with `trainoff lab`


@dataclass
class Record:
    """The result of one trial: written once, never edited. None means not known, not measured or not reached."""

    # identity
    trial_id: str
    attempt: int
    study: str
    engine: str
    engine_version: str
    workload: str
    mode: str
    workers: int
    cores: float
    memory_gb: float | None
    cluster: str
    params: dict[str, Any]
    seed: int
    repetition: int
    position: int
    targets: list[float]
    limits: dict[str, float]
    settled: list[str] = field(default_factory=list)
    dataset: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    kind: str = MEASURED
    # status
    status: str = "ok"
    phase: str | None = None
    reason: str | None = None
    traceback: str | None = None
    log_tail: str | None = None
    unfinished: bool = False
    # quality
    metric: str = "accuracy"
    test_accuracy: float | None = None
    test_metrics: dict[str, float] = field(default_factory=dict)
    time_to_target: dict[str, float | None] = field(default_factory=dict)
    equivalence: dict[str, Any] = field(default_factory=dict)
    fault: dict[str, Any] = field(default_factory=dict)
    # times
    train_s: float | None = None
    test_s: float | None = None
    cold_s: float | None = None
    pause_s: float | None = None
    phases_s: dict[str, float | None] = field(default_factory=dict)
    started_at: str | None = None
    # resources
    steps: int | None = None
    samples_seen: int | None = None
    samples_per_s: float | None = None
    cpu_s: float | None = None
    cpu_s_by_role: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    peak_memory_bytes_by_role: dict[str, int] = field(default_factory=dict)
    network_bytes: int | None = None
    network_bytes_by_phase: dict[str, int] = field(default_factory=dict)
    network_bytes_by_role: dict[str, dict[str, int]] = field(default_factory=dict)
    disk_read_bytes: int | None = None
    disk_write_bytes: int | None = None
    context_switches: int | None = None
    counts: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, float]] = field(default_factory=dict)
    timeline: dict[str, list[list[float]]] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    usd_per_hour: float | None = None
    cost_usd: float | None = None
    # conditions
    isolation: dict[str, Any] = field(default_factory=dict)
    oversubscribed: bool = False
    orphans: int | None = None
    noise: dict[str, Any] = field(default_factory=dict)
    sampler: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the fields as written to record.json, the schema's version first."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"schema_version": values.pop("schema_version"), **values}

    @property
    def result(self) -> float | None:
        """Return the quality of the trained model by the workload's metric."""
        return self.test_accuracy if self.metric == "accuracy" else self.test_metrics.get(self.metric)

    def usd(self, spent_s: float | None) -> float | None:
        """Return what some seconds of all nodes cost in US dollars; None if there is no price."""
        return None if spent_s is None or self.usd_per_hour is None else spent_s / 3600 * self.usd_per_hour

    @property
    def failed(self) -> bool:
        """Return whether the status is neither `ok` nor `unsupported`."""
        return self.status not in ("ok", "unsupported")


@dataclass(frozen=True)
class Metric:
    """A measure of quality."""

    name: str
    higher: bool = True  # whether higher is better

    def reached(self, value: float, target: float) -> bool:
        """Return whether a value is at least as good as the target; NaN never is."""
        return value >= target if self.higher else value <= target

    def badness(self, value: float) -> float:
        """Return a number that is lower for a better value."""
        return -value if self.higher else value


METRICS = {
    metric.name: metric
    for metric in (Metric("accuracy"), Metric("error", higher=False), Metric("auc"), Metric("log-loss", higher=False))
}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Return every metric of a row of a learning curve."""
    found = {"accuracy": row["accuracy"], "error": error_of(row["accuracy"]), "log-loss": row["loss"]}
    return found | ({"auc": row["auc"]} if "auc" in row else {})


def error_of(accuracy: float) -> float:
    """Return the error rate, rounded because 1 - 0.7 is a little more than 0.3 and would miss that target."""
    return round(1 - accuracy, 12)


def time_to_target(
    train_s: Sequence[float], values: Sequence[float], target: float, metric: Metric = METRICS["accuracy"]
) -> float | None:
    """Return the seconds of training until the target is reached and the next snapshot confirms it.

    None if that never happens: the run is censored. The last snapshot needs no confirmation.
    """
    for index in range(len(values)):
        if all(metric.reached(value, target) for value in values[index : index + 2]):
            return train_s[index]
    return None
