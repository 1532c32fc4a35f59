"""Evaluate the claims of a reproduction by its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainoff.analysis import newest
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.reproductions import checks
from trainoff.reproductions.evidence import (
    CHECKS,
    CONFIRMED,
    NOT_COMPARABLE,
    REFUTED,
    ClaimFinding,
    Evidence,
    EvidenceMissing,
    not_comparable,
)
from trainoff.reproductions.published import REPRODUCTIONS, Claim, claims
from trainoff.study.suggestions import quote, suggest

assert checks  # its modules register themselves in CHECKS

STUDIES = Path(__file__).parent / "studies"


@dataclass(frozen=True)
class ClaimResult:
    """A claim and its finding."""

    claim: Claim
    finding: ClaimFinding


def evaluate(name: str, records: Sequence[Record]) -> list[ClaimResult]:
    """Evaluate the claims that a reproduction tests by its records."""
    evidence = Evidence(newest(records))
    return [ClaimResult(claim, _finding(claim, evidence)) for claim in claims() if claim.reproduction == name]


def evaluate_all(records: dict[str, Sequence[Record]]) -> list[ClaimResult]:
    """Evaluate every claim of the documents by the records of each reproduction."""
    evidence = {name: Evidence(newest(found)) for name, found in records.items()}
    nothing = Evidence([])
    return [ClaimResult(each, _finding(each, evidence.get(each.reproduction or "", nothing))) for each in claims()]


def _finding(claim: Claim, evidence: Evidence) -> ClaimFinding:
    if claim.not_comparable:
        return not_comparable(claim.not_comparable)
    if claim.because:
        return ClaimFinding(CONFIRMED, f"by design: {claim.shown}", claim.because)
    assert claim.test
    try:
        return CHECKS[claim.test](evidence)
    except EvidenceMissing as error:
        return not_comparable(str(error))


def verdict_counts(results: Sequence[ClaimResult]) -> str:
    """Count the verdicts: `8 confirmed, 3 refuted, 1 not comparable`."""
    counts = Counter(result.finding.verdict for result in results)
    return ", ".join(f"{counts[each]} {each}" for each in (CONFIRMED, REFUTED, NOT_COMPARABLE) if counts[each])


def reproduction_names() -> tuple[str, ...]:
    """Return the names of the reproductions."""
    return REPRODUCTIONS


def study_files(name: str) -> list[Path]:
    """Return the study files of a reproduction, in the order in which they run."""
    if name not in reproduction_names():
        hint = suggest(name, reproduction_names(), "there are")
        raise TrainoffError(f"there is no published study {quote(name)} to reproduce; {hint}")
    return sorted((STUDIES / name).glob("*.toml"))


def scale_text(path: Path) -> str:
    """Return the first comment of a study file, in which its scale is stated."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
