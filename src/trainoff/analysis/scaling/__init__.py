"""Model the time by the number of nodes and rows, grade the model, and choose the runs that would sharpen it."""

from trainoff.analysis.scaling.curves import Curve, curves
from trainoff.analysis.scaling.designer import RunCandidate, Subject, design
from trainoff.analysis.scaling.model import Fit, Measurement, fit

__all__ = ["Curve", "Fit", "Measurement", "RunCandidate", "Subject", "curves", "design", "fit"]
