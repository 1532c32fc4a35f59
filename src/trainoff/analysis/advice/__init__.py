"""Advice: which engine to use, on how many nodes, what that takes, and how likely it is the best choice."""

from trainoff.analysis.advice.belief import Belief, RunEvidence, Standing, believe, pooled_noise, reaching, weigh
from trainoff.analysis.advice.candidates import AdviceFilter, Candidate, Expected, Field, clock, cold_to, considered
from trainoff.analysis.advice.decide import (
    Advice,
    AdviceLimits,
    More,
    Weighed,
    decide,
    known_target,
    known_wish,
    one_workload,
    why_nothing,
)
from trainoff.analysis.advice.text import chances, expected, headline, likely, limit, runner_up, what_for, why

__all__ = [
    "Advice",
    "AdviceFilter",
    "AdviceLimits",
    "Belief",
    "Candidate",
    "Expected",
    "Field",
    "More",
    "RunEvidence",
    "Standing",
    "Weighed",
    "believe",
    "chances",
    "clock",
    "cold_to",
    "considered",
    "decide",
    "expected",
    "headline",
    "known_target",
    "known_wish",
    "likely",
    "limit",
    "one_workload",
    "pooled_noise",
    "reaching",
    "runner_up",
    "weigh",
    "what_for",
    "why",
    "why_nothing",
]
