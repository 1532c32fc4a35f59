"""The published studies repeated at a stated scale, with a verdict on each of their claims.

`study_files(name)` are the study files of a reproduction, `evaluate(name, records)` the verdicts by its records.
"""

from trainoff.reproductions.charts import RatioChart, ratio_charts
from trainoff.reproductions.evidence import CONFIRMED, NOT_COMPARABLE, REFUTED
from trainoff.reproductions.published import REPRODUCTIONS
from trainoff.reproductions.verdicts import ClaimResult, evaluate, scale_text, study_files, verdict_counts

__all__ = [
    "CONFIRMED",
    "NOT_COMPARABLE",
    "REFUTED",
    "REPRODUCTIONS",
    "ClaimResult",
    "RatioChart",
    "evaluate",
    "ratio_charts",
    "scale_text",
    "study_files",
    "verdict_counts",
]
