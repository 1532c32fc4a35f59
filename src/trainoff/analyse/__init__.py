"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analyse.answer import answer, failure, headline_target, ranked
from trainoff.analyse.batches import batch_lines
from trainoff.analyse.groups import Group, by_workload, groups, newest, varying
from trainoff.analyse.interval import Interval, interval
from trainoff.analyse.price import Price, prices
from trainoff.analyse.spent import Spent, spent, start_costs
from trainoff.analyse.workers import Bound, bound, bounds, resources, staleness, work, worker_lines

__all__ = [
    "Bound",
    "Group",
    "Interval",
    "Price",
    "Spent",
    "answer",
    "batch_lines",
    "bound",
    "bounds",
    "by_workload",
    "failure",
    "groups",
    "headline_target",
    "interval",
    "newest",
    "prices",
    "ranked",
    "resources",
    "spent",
    "staleness",
    "start_costs",
    "varying",
    "work",
    "worker_lines",
]
