"""The published studies again: run here at a stated scale, and every claim judged by what was measured.

`studies(name)` are the study files of a reproduction, `judge(name, records)` a verdict on each of its claims.
"""

from trainoff.reproductions.evidence import CONFIRMED, NOT_COMPARABLE, REFUTED, ClaimFinding, Evidence
from trainoff.reproductions.figures import Drawing, drawings
from trainoff.reproductions.judge import Judged, judge, judge_all, names, scale, studies, summary

__all__ = [
    "CONFIRMED",
    "NOT_COMPARABLE",
    "REFUTED",
    "ClaimFinding",
    "Drawing",
    "Evidence",
    "Judged",
    "drawings",
    "judge",
    "judge_all",
    "names",
    "scale",
    "studies",
    "summary",
]
