"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analyse.band import Band, band_of
from trainoff.analyse.batches import batch_lines
from trainoff.analyse.bottleneck import bottleneck, bottleneck_sentence
from trainoff.analyse.nodes import node_lines, node_rows
from trainoff.analyse.price import Price, prices
from trainoff.analyse.spent import Spent, spent, start_costs
from trainoff.analysis.bottleneck import Bound, bound, bounds, resources, staleness, work, worker_lines
from trainoff.analysis.compare import Comparison, Match, compare, compare_all, comparisons
from trainoff.analysis.correlation import Correlation, Line, correlation_lines, correlations, fit
from trainoff.analysis.cost import Cost, cost_of_trial, cost_to, costs, priced, unpriced
from trainoff.analysis.faults import Struck, left_alone, struck
from trainoff.analysis.figures import FIGURES, Figure, time_to
from trainoff.analysis.groups import Group, by_workload, groups, newest, setting_of, unnamed, varying
from trainoff.analysis.noise import Quiet, disturbances, quiet, quiets
from trainoff.analysis.pareto import COSTS, Front, Point, fronts, pareto
from trainoff.analysis.ranking import headline_target, ranked
from trainoff.analysis.statistics import Interval, interval
from trainoff.analysis.summary import SAME, answer, arithmetic, cautions, failure, headline

__all__ = [
    "COSTS",
    "FIGURES",
    "SAME",
    "Band",
    "Bound",
    "Comparison",
    "Correlation",
    "Cost",
    "Figure",
    "Front",
    "Group",
    "Interval",
    "Line",
    "Match",
    "Point",
    "Price",
    "Quiet",
    "Spent",
    "Struck",
    "answer",
    "arithmetic",
    "band_of",
    "batch_lines",
    "bottleneck",
    "bottleneck_sentence",
    "bound",
    "bounds",
    "by_workload",
    "cautions",
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
    "fit",
    "fronts",
    "groups",
    "headline",
    "headline_target",
    "interval",
    "left_alone",
    "newest",
    "node_lines",
    "node_rows",
    "pareto",
    "priced",
    "prices",
    "quiet",
    "quiets",
    "ranked",
    "resources",
    "setting_of",
    "spent",
    "staleness",
    "start_costs",
    "struck",
    "time_to",
    "unnamed",
    "unpriced",
    "varying",
    "work",
    "worker_lines",
]
