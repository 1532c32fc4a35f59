"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analysis.compare import Comparison, comparisons
from trainoff.analysis.cost import cost_to, costs, priced, unpriced
from trainoff.analysis.groups import SettingGroup, by_workload, groups, newest, usual_settings
from trainoff.analysis.noise import disturbances, noise_reports
from trainoff.analysis.pareto import fronts
from trainoff.analysis.ranking import headline_target, ranked
from trainoff.analysis.summary import failure

__all__ = [
    "Comparison",
    "SettingGroup",
    "by_workload",
    "comparisons",
    "cost_to",
    "costs",
    "disturbances",
    "failure",
    "fronts",
    "groups",
    "headline_target",
    "newest",
    "noise_reports",
    "priced",
    "ranked",
    "unpriced",
    "usual_settings",
]
