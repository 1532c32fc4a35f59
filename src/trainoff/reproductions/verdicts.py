"""Evaluate the claims of a reproduction by its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
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
    return [ClaimResult(claim, finding_on(claim, evidence)) for claim in claims() if claim.reproduction == name]


def finding_on(claim: Claim, evidence: Evidence) -> ClaimFinding:
    """Return the finding on one claim."""
    if claim.because:
        return ClaimFinding(CONFIRMED, f"by design: {claim.shown}", claim.because)
    reason = claim.not_comparable
    if claim.test:
        try:
            return CHECKS[claim.test](evidence)
        except EvidenceMissing as error:
            reason = str(error)
    return ClaimFinding(NOT_COMPARABLE, "-", reason or "")


def verdict_counts(results: Sequence[ClaimResult]) -> str:
    """Count the verdicts: `8 confirmed, 3 refuted, 1 not comparable`."""
    counts = Counter(result.finding.verdict for result in results)
    return ", ".join(f"{counts[each]} {each}" for each in (CONFIRMED, REFUTED, NOT_COMPARABLE) if counts[each])


def study_files(name: str) -> list[Path]:
    """Return the study files of a reproduction, in the order in which they run."""
    if name not in REPRODUCTIONS:
        hint = suggest(name, REPRODUCTIONS, "there are")
        raise TrainoffError(f"there is no published study {quote(name)} to reproduce; {hint}")
    return sorted((STUDIES / name).glob("*.toml"))


def scale_text(path: Path) -> str:
    """Return the first comment of a study file, in which its scale is stated."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.lstrip("# ") for line in lines)
