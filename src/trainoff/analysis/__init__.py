"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analysis.bottleneck import (
    bottleneck,
    bottleneck_sentence,
    bound,
    bound_sentences,
    node_lines,
    node_rows,
    resource_lines,
    staleness,
    start_costs,
    time_split,
    worker_lines,
)
from trainoff.analysis.compare import Band, Comparison, Match, band_of, compare, compare_all, comparisons
from trainoff.analysis.correlation import (
    batch_lines,
    correlation_lines,
    correlations,
    fit_line,
)
from trainoff.analysis.cost import cost_of_trial, cost_to, costs, priced, unpriced
from trainoff.analysis.faults import FaultEffect, fault_effects
from trainoff.analysis.figures import FIGURES, Figure, time_to
from trainoff.analysis.groups import SettingGroup, by_workload, groups, newest, usual_settings, varying_keys
from trainoff.analysis.noise import NoiseReport, disturbances, noise_reports
from trainoff.analysis.pareto import COSTS, CheapestSetting, cheapest_settings, fronts, pareto
from trainoff.analysis.ranking import headline_target, ranked
from trainoff.analysis.statistics import Interval, interval
from trainoff.analysis.summary import SAME, arithmetic, cautions, closing_sentences, failure, headline

__all__ = [
    "COSTS",
    "FIGURES",
    "SAME",
    "Band",
    "CheapestSetting",
    "Comparison",
    "FaultEffect",
    "Figure",
    "Interval",
    "Match",
    "NoiseReport",
    "SettingGroup",
    "arithmetic",
    "band_of",
    "batch_lines",
    "bottleneck",
    "bottleneck_sentence",
    "bound",
    "bound_sentences",
    "by_workload",
    "cautions",
    "cheapest_settings",
    "closing_sentences",
    "compare",
    "compare_all",
    "comparisons",
    "correlation_lines",
    "correlations",
    "cost_of_trial",
    "cost_to",
    "costs",
    "disturbances",
    "failure",
    "fault_effects",
    "fit_line",
    "fronts",
    "groups",
    "headline",
    "headline_target",
    "interval",
    "newest",
    "node_lines",
    "node_rows",
    "noise_reports",
    "pareto",
    "priced",
    "ranked",
    "resource_lines",
    "staleness",
    "start_costs",
    "time_split",
    "time_to",
    "unpriced",
    "usual_settings",
    "varying_keys",
    "worker_lines",
]
