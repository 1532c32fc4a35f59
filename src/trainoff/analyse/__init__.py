"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analyse.answer import answer, failure, headline_target, ranked
from trainoff.analyse.groups import Group, by_workload, groups, newest, varying
from trainoff.analyse.price import Price, prices

__all__ = [
    "Group",
    "Price",
    "answer",
    "by_workload",
    "failure",
    "groups",
    "headline_target",
    "newest",
    "prices",
    "ranked",
    "varying",
]
