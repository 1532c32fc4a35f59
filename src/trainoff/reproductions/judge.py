"""The verdict on each claim of a reproduction."""

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

assert checks  # they enter themselves in CHECKS


@dataclass(frozen=True)
class ClaimResult:
    """A claim, and what came of it here."""

    claim: Claim
    finding: ClaimFinding


def evaluate(name: str, records: Sequence[Record]) -> list[ClaimResult]:
    """The claims that a reproduction tests, each with its verdict by these records."""
    seen = Evidence(newest(records))
    return [ClaimResult(claim, _finding(claim, seen)) for claim in claims() if claim.reproduction == name]


def evaluate_all(records: dict[str, Sequence[Record]]) -> list[ClaimResult]:
    """Every claim of the documents, with the records of each reproduction by its name."""
    seen = {name: Evidence(newest(own)) for name, own in records.items()}
    return [ClaimResult(claim, _finding(claim, seen.get(claim.reproduction or "", Evidence([])))) for claim in claims()]


def _finding(claim: Claim, seen: Evidence) -> ClaimFinding:
    if claim.not_comparable:
        return not_comparable(claim.not_comparable)
    if claim.because:
        return ClaimFinding(CONFIRMED, f"by design: {claim.shown}", claim.because)
    assert claim.test
    try:
        return CHECKS[claim.test](seen)
    except EvidenceMissing as error:
        return not_comparable(str(error))


def verdict_counts(judged: Sequence[ClaimResult]) -> str:
    """How many claims came out how: `8 confirmed, 3 refuted, 1 not comparable`."""
    tally = Counter(one.finding.verdict for one in judged)
    order = (CONFIRMED, REFUTED, NOT_COMPARABLE)
    return ", ".join(f"{tally[verdict]} {verdict}" for verdict in order if tally[verdict])


STUDIES = Path(__file__).parent / "studies"


def names() -> tuple[str, ...]:
    """The reproductions."""
    return REPRODUCTIONS


def study_files(name: str) -> list[Path]:
    """The study files of a reproduction, in the order in which they run."""
    if name not in names():
        hint = suggest(name, names(), "there are")
        raise TrainoffError(f"there is no published study {quote(name)} to reproduce; {hint}")
    return sorted((STUDIES / name).glob("*.toml"))


def scale_text(path: Path) -> str:
    """What a study file says of itself: its first comment, in which the scale is stated."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
