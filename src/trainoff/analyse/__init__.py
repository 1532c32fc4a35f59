"""What records say: groups of repetitions, ranking, the answer in words. Pure functions over records."""

from trainoff.analyse.answer import answer, failure, headline_target, ranked
from trainoff.analyse.groups import Group, groups, newest, varying

__all__ = ["Group", "answer", "failure", "groups", "headline_target", "newest", "ranked", "varying"]
