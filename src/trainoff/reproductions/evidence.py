"""What a claim is judged by: the records of a reproduction, and the few questions that checks ask of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainoff.analysis.format import ratio_text
from trainoff.errors import TrainoffError
from trainoff.records import MEASURED, Record

CONFIRMED, REFUTED, NOT_COMPARABLE = "confirmed", "refuted", "not comparable"
BAND = 1.1  # what differs by less counts as alike: a reproduction has few runs of each setting

RecordValue = Callable[[Record], float | None]


class EvidenceMissing(TrainoffError):
    """The evidence for a check is not there."""


@dataclass(frozen=True)
class ClaimFinding:
    """What was measured of a claim, in words, the verdict on it, and why."""

    verdict: str
    measured: str
    reason: str = ""


@dataclass(frozen=True)
class Evidence:
    """Some records of a reproduction."""

    records: Sequence[Record]

    def of(self, **wanted: Any) -> Evidence:
        """Those with these values, of fields or parameters; None means a parameter that is not there or null."""
        return Evidence([record for record in self.records if all(_has(record, *one) for one in wanted.items())])

    def where(self, test: Callable[[Record], bool]) -> Evidence:
        """Those of which it is true."""
        return Evidence([record for record in self.records if test(record)])

    @property
    def good(self) -> list[Record]:
        """Those that ended well."""
        return [record for record in self.records if record.status == "ok"]

    @property
    def calm(self) -> Evidence:
        """Those to which nothing was done on purpose."""
        return self.where(lambda record: not record.fault)

    def value(self, figure: RecordValue, what: str) -> float:
        """The median of a figure over those that ended well; Lacking, with the reason, where there is none."""
        found = [value for record in self.good if (value := figure(record)) is not None]
        if found:
            return float(median(found))
        bad = next((record for record in self.records if record.status != "ok"), None)
        why = f"it ended as {bad.status}: {bad.reason}" if bad else "no such trial ran"
        raise EvidenceMissing(f"{what} is not known: {why}")

    def train_s(self, what: str) -> float:
        """The median training time."""
        return self.value(lambda record: record.train_s, f"the training time of {what}")

    def result(self, what: str) -> float:
        """The median of how good the models came out."""
        return self.value(lambda record: record.result, f"the result of {what}")

    def by(self, key: str) -> dict[Any, Evidence]:
        """The records by the values of a field or parameter, in the order of the values."""
        values = sorted({value for record in self.records if (value := field_of(record, key)) is not None})
        return {value: self.of(**{key: value}) for value in values}


def field_of(record: Record, key: str) -> Any:
    """A field of a record, or a parameter."""
    return getattr(record, key) if key in Record.__dataclass_fields__ and key != "nodes" else record.params.get(key)


def rows_of_a_worker(record: Record) -> int:
    """How many rows a worker takes at a time: its share of the batch in sync, else the whole; as printed elsewhere."""
    batch = int(record.params["batch_size"])
    return batch // record.workers if record.mode == "sync" and record.kind == MEASURED else batch


def _has(record: Record, key: str, wanted: Any) -> bool:
    found = field_of(record, key)
    return bool(found in wanted if isinstance(wanted, tuple) else found == wanted)


def finding(true: bool, measured: str, reason: str = "") -> ClaimFinding:
    """A verdict by what is true here."""
    return ClaimFinding(CONFIRMED if true else REFUTED, measured, reason)


def not_comparable(reason: str, measured: str = "-") -> ClaimFinding:
    """No verdict, and why."""
    return ClaimFinding(NOT_COMPARABLE, measured, reason)


def larger(a: float, b: float) -> bool:
    """Whether a is larger than b by more than counts as alike."""
    return a > b * BAND


def alike(a: float, b: float) -> bool:
    """Whether two figures are alike."""
    return not larger(a, b) and not larger(b, a)


def times_text(value: float) -> str:
    """A ratio in words: `2.1 times`."""
    return f"{ratio_text(value)} times"


Check = Callable[[Evidence], ClaimFinding]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Enter a check under the name by which claims know it: its own, with hyphens."""
    CHECKS[function.__name__.replace("_", "-")] = function
    return function
