"""The band of equivalence: differences that one and the same setting shows from one run to the next are none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainoff.analysis.figures import Figure
from trainoff.analysis.format import percent
from trainoff.analysis.groups import Group
from trainoff.records import Record

UNTIL_KNOWN = 0.05
NARROWEST, WIDEST = 0.01, 0.10  # less decides nothing for anybody; more would hide what matters on a noisy machine
REPEATABILITY = 1.96 * math.sqrt(2)  # standard deviations within which two runs differ in 95 % of all cases (ISO 5725)
ENOUGH = 4  # degrees of freedom: one setting run five times, or four settings run twice


@dataclass(frozen=True)
class Band:
    """Ratios from 1/(1 + width) to 1 + width count as equal."""

    width: float
    source: str = "default"  # or "repetitions"

    def holds(self, low: float, high: float) -> bool:
        """Whether an interval of ratios lies inside."""
        return low >= 1 / (1 + self.width) and high <= 1 + self.width

    def __str__(self) -> str:
        wide = percent(round(self.width, 3))
        return f"{wide}, from the spread of repetitions" if self.source == "repetitions" else f"{wide}, the default"


DEFAULT = Band(UNTIL_KNOWN)


def band_of(groups: Iterable[Group], figure: Figure) -> Band:
    """How far two runs of one setting lie apart here, from repetitions in one study on one machine; else 5 %."""
    squares, freedom = 0.0, 0
    for logs in (_logs(runs, figure) for group in groups for runs in _together(group)):
        if len(logs) > 1:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
    if freedom < ENOUGH:
        return DEFAULT
    width = math.expm1(REPEATABILITY * math.sqrt(squares / freedom))
    return Band(min(WIDEST, max(NARROWEST, width)), "repetitions")


def _together(group: Group) -> Iterable[list[Record]]:
    """The runs of a setting that were made under the same conditions."""
    found: dict[tuple[str, object], list[Record]] = {}
    for record in group.records:
        found.setdefault((record.study, record.environment.get("host")), []).append(record)
    return found.values()


def _logs(runs: Iterable[Record], figure: Figure) -> list[float]:
    values = [value for record in runs if (value := figure.value(record)) is not None]
    return [math.log(value) for value in values if 0 < value < math.inf]
