"""The published studies again: run here at a stated scale, and every claim judged by what was measured.

`studies(name)` are the study files of a reproduction, `judge(name, records)` a verdict on each of its claims.
"""

from trainoff.reproductions.evidence import CONFIRMED, NOT_COMPARABLE, REFUTED, ClaimFinding, Evidence
from trainoff.reproductions.figures import RatioChart, ratio_charts
from trainoff.reproductions.judge import (
    ClaimResult,
    evaluate,
    evaluate_all,
    names,
    scale_text,
    study_files,
    verdict_counts,
)

__all__ = [
    "CONFIRMED",
    "NOT_COMPARABLE",
    "REFUTED",
    "ClaimFinding",
    "ClaimResult",
    "Evidence",
    "RatioChart",
    "evaluate",
    "evaluate_all",
    "names",
    "ratio_charts",
    "scale_text",
    "study_files",
    "verdict_counts",
]
