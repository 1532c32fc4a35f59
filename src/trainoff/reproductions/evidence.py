"""The evidence by which claims are tested: records of a reproduction, and the findings of checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainoff.analysis.format import ratio_text
from trainoff.errors import TrainoffError
from trainoff.records import MEASURED, Record

CONFIRMED, REFUTED, NOT_COMPARABLE = "confirmed", "refuted", "not comparable"
BAND = 1.1  # a ratio below which figures count as alike, since a reproduction has few runs of each setting

RecordValue = Callable[[Record], float | None]


class EvidenceMissing(TrainoffError):
    """The records that a check needs are missing."""


def require(condition: object, missing: str) -> None:
    """Raise EvidenceMissing unless the condition holds."""
    if not condition:
        raise EvidenceMissing(missing)


@dataclass(frozen=True)
class ClaimFinding:
    """The verdict on a claim, what was measured, and the reason."""

    verdict: str
    measured: str
    reason: str = ""


@dataclass(frozen=True)
class Evidence:
    """Some records of a reproduction."""

    records: Sequence[Record]

    def select(self, **wanted: Any) -> Evidence:
        """Return the records with these values of fields or parameters; None is a missing parameter or null."""
        return self.filter(lambda record: all(field_of(record, key) == value for key, value in wanted.items()))

    def filter(self, test: Callable[[Record], bool]) -> Evidence:
        """Return the records that pass a test."""
        return Evidence([record for record in self.records if test(record)])

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if record.status == "ok"]

    @property
    def without_faults(self) -> Evidence:
        return self.filter(lambda record: not record.fault)

    @property
    def with_faults(self) -> Evidence:
        return self.filter(lambda record: bool(record.fault))

    def value(self, figure: RecordValue, what: str) -> float:
        """Return the median of a figure over the records that ended well; EvidenceMissing if there is none."""
        found = [value for record in self.good if (value := figure(record)) is not None]
        if found:
            return float(median(found))
        bad = next((record for record in self.records if record.status != "ok"), None)
        why = f"it ended as {bad.status}: {bad.reason}" if bad else "no such trial ran"
        raise EvidenceMissing(f"{what} is not known: {why}")

    def train_s(self, what: str) -> float:
        return self.value(lambda record: record.train_s, f"the training time of {what}")

    def result(self, what: str) -> float:
        return self.value(lambda record: record.result, f"the result of {what}")

    def train_times(self, key: str) -> dict[Any, float]:
        """Return the median training time by a field or parameter, as far as trials ended well."""
        return {value: part.train_s(f"{key} {value}") for value, part in self.group_by(key).items() if part.good}

    def group_by(self, key: str) -> dict[Any, Evidence]:
        """Group the records by a field or parameter, in the order of its values."""
        values = sorted({value for record in self.records if (value := field_of(record, key)) is not None})
        return {value: self.select(**{key: value}) for value in values}


def field_of(record: Record, key: str) -> Any:
    """Return a field of a record, or a parameter."""
    return getattr(record, key) if key in Record.__dataclass_fields__ and key != "nodes" else record.params.get(key)


def time_of(record: Record) -> float:
    """Return the training time; 0 without one."""
    return record.train_s or 0.0


def result_of(record: Record) -> float:
    """Return the result; 0 without one."""
    return record.result or 0.0


def rows_of_a_worker(record: Record) -> int:
    """Return how many rows a worker takes at a time: in sync its share of the batch, unless the record is published."""
    batch = int(record.params["batch_size"])
    return batch // record.workers if record.mode == "sync" and record.kind == MEASURED else batch


def finding(true: bool, measured: str, reason: str = "") -> ClaimFinding:
    """Confirm a claim that is true here, and refute it otherwise."""
    return ClaimFinding(CONFIRMED if true else REFUTED, measured, reason)


def larger(a: float, b: float) -> bool:
    """Whether a is larger than b by more than counts as alike."""
    return a > b * BAND


def alike(a: float, b: float) -> bool:
    """Whether two figures are alike."""
    return not larger(a, b) and not larger(b, a)


def times_text(ratio: float) -> str:
    """Format a ratio: `2.1 times`."""
    return f"{ratio_text(ratio)} times"


Check = Callable[[Evidence], ClaimFinding]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under the name that claims use: the function's, with hyphens."""
    CHECKS[function.__name__.replace("_", "-")] = function
    return function
