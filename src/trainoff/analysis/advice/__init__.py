"""Advice: which engine to use, on how many nodes, what that takes, and how likely it is the best choice."""

from trainoff.analysis.advice.candidates import AdviceFilter, find_candidates
from trainoff.analysis.advice.decide import AdviceLimits, decide
from trainoff.analysis.advice.posterior import compute_standings, fit_posteriors

__all__ = ["AdviceFilter", "AdviceLimits", "compute_standings", "decide", "find_candidates", "fit_posteriors"]
