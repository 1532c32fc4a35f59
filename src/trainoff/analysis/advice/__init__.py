"""Advice: which engine to use, on how many nodes, what that takes, and how likely it is the best choice."""

from trainoff.analysis.advice.candidates import (
    AdviceFilter,
    Candidate,
    find_candidates,
)
from trainoff.analysis.advice.decide import (
    Advice,
    AdviceLimits,
    RankedCandidate,
    advice_sentence,
    check_filter,
    choose_target,
    decide,
    expectation_sentence,
    limit_sentence,
    next_runs_sentence,
    no_candidate_reason,
    probability_sentence,
    probability_text,
    reasons,
    runner_up_sentences,
    select_workload,
)
from trainoff.analysis.advice.posterior import (
    RunEvidence,
    compute_standings,
    fit_posteriors,
)

__all__ = [
    "Advice",
    "AdviceFilter",
    "AdviceLimits",
    "Candidate",
    "RankedCandidate",
    "RunEvidence",
    "advice_sentence",
    "check_filter",
    "choose_target",
    "compute_standings",
    "decide",
    "expectation_sentence",
    "find_candidates",
    "fit_posteriors",
    "limit_sentence",
    "next_runs_sentence",
    "no_candidate_reason",
    "probability_sentence",
    "probability_text",
    "reasons",
    "runner_up_sentences",
    "select_workload",
]
