"""Advice in plain words: what to use, how sure that is, and why."""

from __future__ import annotations

from collections.abc import Sequence

from trainoff.analysis.advice.belief import ALIKE, UNTIL_KNOWN
from trainoff.analysis.advice.candidates import Candidate, Expected
from trainoff.analysis.advice.decide import USD, Advice, AdviceLimits, Weighed
from trainoff.analysis.bottleneck import bottleneck
from trainoff.analysis.compare import RANKING
from trainoff.analysis.format import count, dollars, mark, seconds, span, times
from trainoff.analysis.groups import SettingGroup
from trainoff.analysis.scaling import share

MOST_TOLD = 3


def likely(chance: float) -> str:
    """A probability as a person says it: `93%`, `over 99%`, `under 1%`."""
    whole = round(100 * chance)
    return "over 99%" if whole == 100 else "under 1%" if whole == 0 else f"{whole}%"


def headline(advice: Advice) -> str:
    """The advice in one sentence."""
    best = advice.choice.candidate
    if advice.runner_up is None:
        asked = advice.field.wish.engine is not None and not advice.too_much
        return f"Asked about: {_where(best)}." if asked else f"Use {_where(best)}{_why_alone(advice)}."
    other = advice.runner_up.candidate
    if advice.verdict == "either":
        return f"Use {_where(best)}, or {_where(other)}: either will do, since these runs cannot tell them apart."
    if advice.verdict == "open":
        return f"Not enough evidence to choose: {_where(best)} may be the best, but so may {_where(other)}."
    return f"Use {_where(best)}."


def _where(one: Candidate) -> str:
    return f"{one.name} on {one.place}"


def _why_alone(advice: Advice) -> str:
    if advice.too_much:
        return f": nothing else is sure enough to keep {advice.limits}"
    return ": it is all that can be said, since nothing else got there" if advice.field.never else ""


def expected(one: Candidate, metric: str, target: float, cold: bool) -> str:
    """What it takes, with intervals."""
    took, whole = one.seconds, one.besides_s
    money = f" and {dollars(one.usd.middle)} ({_sums(one.usd)})" if one.usd else ""
    clock = "from cold" if cold else "of training"
    start = f"; with start and end {seconds(took.middle + whole)}" if whole is not None and not cold else ""
    told = f"{mark(metric, target)} after {seconds(took.middle)} {clock} ({span(took.low, took.high)}){money}{start}."
    return f"It should reach {told}"


def _sums(usd: Expected) -> str:
    low, high = dollars(usd.low), dollars(usd.high)
    return high if low == high else f"{low} to {high}"


def chances(advice: Advice) -> str | None:
    """How likely it is the best choice; None where there is no other."""
    if advice.runner_up is None:
        return None
    predicted = sum(not one.candidate.measured for one in advice.ranked)
    how_many = "all" if predicted == len(advice.ranked) else str(predicted)
    also = f", {how_many} of them predicted" if predicted else ""
    what = "cheapest" if advice.goal == USD else "fastest"
    return (
        f"It is the {what} with a probability of {likely(advice.standing.best)}, and within {ALIKE:.0%} of the {what} "
        f"with {likely(advice.standing.near)}, among {len(advice.ranked)} that were weighed{also}."
    )


def limit(advice: Advice) -> str | None:
    """How likely the limits are kept."""
    if advice.limits == AdviceLimits():
        return None
    return f"The next run keeps {advice.limits} with a probability of {likely(advice.choice.kept)}."


def runner_up(advice: Advice) -> list[str]:
    """The next best, and the best of another engine where that is not the same."""
    if advice.runner_up is None:
        return []
    said = [f"Runner-up: {_behind(advice, advice.runner_up)}."]
    engine = advice.choice.candidate.record.engine
    others = [one for one in advice.ranked if one.candidate.record.engine != engine]
    if others and others[0] is not advice.runner_up:
        said.append(f"The best of another engine: {_behind(advice, others[0])}.")
    run = [one for one in advice.ranked if one.candidate.measured]
    if run and run[0] not in (*advice.ranked[:2], *others[:1]):
        said.append(f"The best that was run: {_behind(advice, run[0])}.")
    return said


def _behind(advice: Advice, other: Weighed) -> str:
    low, middle, high = advice.behind(other)
    what = "costs {} times as much" if advice.goal == USD else "takes {} times as long"
    return f"{_where(other.candidate)} {what.format(times(middle))} ({times(low)} to {times(high)})"


def why(advice: Advice, metric: str, target: float) -> list[str]:
    """What the advice rests on, the most important first."""
    best = advice.choice.candidate
    said = [_basis(best, mark(metric, target))]
    shown = [one.candidate for one in advice.ranked[:2]]
    said += [sentence for one in shown if one.measured and (sentence := _held(one.group))]
    return [*said, *_left_out(advice, mark(metric, target)), *_caution(advice)]


def _basis(one: Candidate, goal: str) -> str:
    """The runs that speak for a candidate, or the model that does."""
    runs, good = one.evidence.runs, len(one.evidence.seconds)
    if one.measured:
        return f"It reached {goal} in {good} of {count(runs, 'run')}."
    error = one.estimate.error if one.estimate else None
    checked = "nothing could check that" if error is None else f"where it could be checked it was off by {share(error)}"
    beyond = ", and this lies beyond what was run (extrapolated)" if one.extrapolated else ""
    return f"Nobody ran this: it is predicted from {count(good, 'run')} that got there{beyond}; {checked}."


def _held(group: SettingGroup) -> str | None:
    """What bounded a setting."""
    held = bottleneck(group.good[0]) if group.good else None
    return f"{group.name} was {held}." if held else None


def _left_out(advice: Advice, goal: str) -> list[str]:
    said = []
    if advice.field.never:
        names = _names([group.name for group in advice.field.never])
        said.append(f"Never got to {goal}: {names}.")
    if advice.too_much:
        names = _names([one.candidate.name for one in advice.too_much])
        said.append(f"Not sure enough to keep {advice.limits}: {names}.")
    if advice.unpriced:
        said.append(f"Left out, because no price of them is known: {_names([one.name for one in advice.unpriced])}.")
    return said


def _names(every: Sequence[str]) -> str:
    names = list(dict.fromkeys(every))
    more = len(names) - MOST_TOLD
    return ", ".join(names[:MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


def _caution(advice: Advice) -> list[str]:
    measured = [one for one in advice.field.candidates if one.measured]
    hosts = {record.environment.get("host") for one in measured for record in one.group.records}
    said = []
    said += _shared_cpus(advice.choice.candidate)
    if advice.field.wish.rows is None and len({one.rows for one in advice.field.candidates}) > 1:
        said.append("The settings differ in their rows; --rows R chooses among those with R rows.")
    if len(hosts) > 1:
        said.append(f"The runs are from {len(hosts)} machines, whose times say little of each other.")
    if len(advice.field.engines) == 1 and advice.field.wish.engine is None:
        only = advice.choice.candidate.record.engine
        said.append(f"Only {only} was tried, so this does not say which engine to use.")
    if advice.indicative:
        said.append(f"{_few(advice)}, so this is indicative{_guess(advice)}.")
    return said


def _few(advice: Advice) -> str:
    """Of which of the first two there are too few runs."""
    two = [one.candidate for one in advice.ranked[:2] if one.candidate.measured]
    few = [one for one in two if one.evidence.runs < RANKING]
    if len(few) < len(two):
        return f"{count(few[0].evidence.runs, 'run')} of {few[0].name} only"
    return "One run each" if all(one.evidence.runs == 1 for one in few) else f"Fewer than {RANKING} runs each"


def _shared_cpus(one: Candidate) -> list[str]:
    """That nodes would share the CPUs of one machine, which no model knows that has not seen it."""
    record = one.record
    there, needed = record.environment.get("cpus"), one.nodes * record.cores
    if one.measured or record.cluster != "processes" or not there or needed <= there:
        return []
    return [f"That machine has {there} CPUs for {needed:g} cores: they would be shared, which the model does not know."]


def _guess(advice: Advice) -> str:
    """That nobody knows how far runs lie apart, where no setting was run twice."""
    if any(len(one.evidence.seconds) > 1 for one in advice.field.candidates if one.measured):
        return ""
    return f": that runs of one setting lie {UNTIL_KNOWN:.0%} apart is a guess"


def what_for(advice: Advice, command: bool) -> str | None:
    """What more runs would bring, before the command that makes them, if any; None where they would bring nothing."""
    more = advice.more
    if more is None:
        return None
    names = " and ".join(one.name for one in more.candidates)
    if more.why == "engines":
        others = "run others, too:" if command else "add others to `engines` in the study, and run it again."
        return f"Not enough evidence to choose an engine; {others}"
    if more.why == "predicted":
        return f"Run {names} before you rely on it:"
    if more.why == "apart":
        if not more.worth_it:
            return f"It would take some {more.repeat:,} runs of each to tell {names} apart, which is hardly worth it."
        return f"About {more.repeat} runs of each would tell {names} apart:"
    return f"{more.repeat} runs of {'each' if len(more.candidates) > 1 else 'it'} would make it a finding:"
