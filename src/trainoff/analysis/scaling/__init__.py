"""Model the time by the number of nodes and rows, grade the model, and choose the runs that would sharpen it."""

from trainoff.analysis.scaling.curves import PER_1000, SIZES, Curve, curves, nodes_key, rows_of
from trainoff.analysis.scaling.designer import DesignedRun, RunCandidate, Subject, design, expected_width, grid
from trainoff.analysis.scaling.model import (
    Estimate,
    Fit,
    Formula,
    Measurement,
    alternative_range,
    fit,
    graded,
)
from trainoff.analysis.scaling.text import (
    error_text,
    formula_text,
    grade_text,
    interpretation,
    shape_caution,
    share_text,
)

__all__ = [
    "PER_1000",
    "SIZES",
    "Curve",
    "DesignedRun",
    "Estimate",
    "Fit",
    "Formula",
    "Measurement",
    "RunCandidate",
    "Subject",
    "alternative_range",
    "curves",
    "design",
    "error_text",
    "expected_width",
    "fit",
    "formula_text",
    "grade_text",
    "graded",
    "grid",
    "interpretation",
    "nodes_key",
    "rows_of",
    "shape_caution",
    "share_text",
]
