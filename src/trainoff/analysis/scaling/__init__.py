"""How training time goes with the number of nodes: a model, its grade, and which runs would sharpen it."""

from trainoff.analysis.scaling.curves import PER_1000, SIZES, Curve, curves, nodes_key, rows_of
from trainoff.analysis.scaling.designer import DesignedRun, RunCandidate, Subject, design, expected_width, grid
from trainoff.analysis.scaling.model import Config, Estimate, Fit, Grade, Mix, Term, fit, graded, nnls, rivals
from trainoff.analysis.scaling.text import checked, mixed, off, sense, shape, share

__all__ = [
    "PER_1000",
    "SIZES",
    "Config",
    "Curve",
    "DesignedRun",
    "Estimate",
    "Fit",
    "Grade",
    "Mix",
    "RunCandidate",
    "Subject",
    "Term",
    "checked",
    "curves",
    "design",
    "expected_width",
    "fit",
    "graded",
    "grid",
    "mixed",
    "nnls",
    "nodes_key",
    "off",
    "rivals",
    "rows_of",
    "sense",
    "shape",
    "share",
]
