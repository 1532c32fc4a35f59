"""The decision: what to use under the limits that were set, what comes next, how sure that is, what would tell more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analysis.advice.candidates import AdviceFilter, Candidate, CandidateSet, ExpectedRange
from trainoff.analysis.advice.posterior import (
    ALIKE,
    UNTIL_KNOWN,
    Array,
    Standing,
    compute_standings,
    pooled_noise,
    ratio_quantiles,
)
from trainoff.analysis.bottleneck import bottleneck
from trainoff.analysis.compare import RANKING
from trainoff.analysis.format import count, dollars, join_names, quality, ratio_text, seconds, span, target_text
from trainoff.analysis.groups import SettingGroup, by_workload, groups
from trainoff.analysis.ranking import headline_target, not_timed
from trainoff.analysis.scaling import curves, rows_of, share_text
from trainoff.analysis.statistics import LEVEL
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record
from trainoff.study.suggestions import quote, suggest

SECONDS, USD = "seconds", "usd"  # what is to be small
SAFE, HALF = 0.8, 0.5  # a limit is taken to be kept from SAFE on; nothing below HALF is advised
SURE, LIKELY = 0.95, 0.8
CLEAR = 2.0  # standard errors that a difference must be to show: then one of the two is the better with 97 %
MOST_REPEATS = 30  # nobody repeats a run more often to tell two settings apart
NOTHING = 1e-12  # dollars: what costs nothing


@dataclass(frozen=True)
class AdviceLimits:
    """What the training may take until the target; None: anything."""

    max_seconds: float | None = None
    max_cost: float | None = None

    def __str__(self) -> str:
        said = [] if self.max_seconds is None else [f"--max-seconds {self.max_seconds:g}"]
        return " and ".join([*said, *([] if self.max_cost is None else [f"--max-cost {self.max_cost:g}"])])

    def most_s(self, candidate: Candidate) -> float:
        """The seconds that a candidate may take: a budget is time, at its price."""
        most = math.inf if self.max_seconds is None else self.max_seconds
        if self.max_cost is None or not candidate.usd_per_hour:
            return most
        return min(most, self.max_cost / candidate.usd_per_hour * 3600)


@dataclass(frozen=True, eq=False)
class RankedCandidate:
    """A candidate with its standing among those that keep the limits; without one where it does not keep them."""

    candidate: Candidate
    kept: float  # how likely the next run gets there within the limits
    standing: Standing | None


@dataclass(frozen=True)
class MoreRuns:
    """Runs that would tell more: of these candidates, so many of each in all."""

    reason: str  # engines, predicted, apart, few
    candidates: Sequence[Candidate]
    repeat: int

    @property
    def practical(self) -> bool:
        return self.repeat <= MOST_REPEATS


@dataclass(frozen=True)
class Advice:
    """What to use, and how sure that is."""

    objective: str  # seconds or usd
    limits: AdviceLimits
    ranked: Sequence[RankedCandidate]  # those that keep the limits, the best first
    too_much: Sequence[RankedCandidate]  # those that do not
    unpriced: Sequence[Candidate]  # left out because money counts and theirs is not known
    candidate_set: CandidateSet
    more: MoreRuns | None

    @property
    def choice(self) -> RankedCandidate:
        return self.ranked[0]

    @property
    def standing(self) -> Standing:
        """Where the choice stands."""
        assert self.choice.standing is not None
        return self.choice.standing

    @property
    def runner_up(self) -> RankedCandidate | None:
        return self.ranked[1] if len(self.ranked) > 1 else None

    @property
    def verdict(self) -> str:
        """`sure`, `likely`, `either` if others will do as well, else `open`; `alone` without another to compare."""
        if len(self.ranked) == 1:
            return "alone"
        if self.standing.best >= LIKELY:
            return "sure" if self.standing.best >= SURE else "likely"
        return "either" if self.standing.near_best >= LIKELY else "open"

    @property
    def indicative(self) -> bool:
        """Fewer than five runs of the choice or of its runner-up."""
        return any(one.candidate.measured and one.candidate.evidence.runs < RANKING for one in self.ranked[:2])

    def behind(self, other: RankedCandidate) -> tuple[float, float, float]:
        """How many times as much another takes as the choice: from, middle, to."""
        return ratio_quantiles(
            _value(other.candidate, self.objective), _value(self.choice.candidate, self.objective), LEVEL
        )


def decide(field: CandidateSet, limits: AdviceLimits) -> Advice:
    """Choose: the shortest time; with a limit of time and prices the cheapest; in each case within the limits."""
    every = list(field.candidates)
    priced = [one for one in every if one.usd_per_hour is not None]
    money = limits.max_cost is not None or (limits.max_seconds is not None and bool(priced))
    goal = USD if limits.max_seconds is not None and priced else SECONDS
    taking_part = priced if money else every
    if not taking_part:
        raise TrainoffError(
            f"{limits}: no price is known of what could be chosen; name a price book with --prices FILE"
        )
    judged = [RankedCandidate(one, one.posterior.kept(limits.most_s(one)), None) for one in taking_part]
    allowed = _allowed(judged, limits)
    standings = compute_standings([_value(one.candidate, goal) for one in allowed])
    ranked = [RankedCandidate(one.candidate, one.kept, found) for one, found in zip(allowed, standings, strict=True)]
    ranked.sort(key=lambda one: one.standing.regret if one.standing else math.inf)
    rest = [one for one in judged if one not in allowed]
    unpriced = [one for one in every if one not in taking_part]
    return Advice(goal, limits, ranked, rest, unpriced, field, _more(ranked, field, goal))


def _value(candidate: Candidate, goal: str) -> Array:
    """What is to be small, runs that are begun again included."""
    if goal == SECONDS:
        return candidate.posterior.whole
    return np.maximum(candidate.posterior.whole * (candidate.usd_per_hour or 0.0) / 3600, NOTHING)


def _allowed(judged: Sequence[RankedCandidate], limits: AdviceLimits) -> list[RankedCandidate]:
    """Those that keep the limits well enough; where none does, the one that does so best, if it is likely to."""
    if limits == AdviceLimits():
        return list(judged)
    safe = [one for one in judged if one.kept >= SAFE]
    if safe:
        return safe
    best = max(judged, key=lambda one: (one.kept, -float(np.median(one.candidate.posterior.typical))))
    if best.kept >= HALF:
        return [best]
    raise TrainoffError(f"{limits}: nothing here is likely to keep that; {_nearest(judged, limits)}")


def _nearest(judged: Sequence[RankedCandidate], limits: AdviceLimits) -> str:
    """What comes closest, with what it takes."""

    def excess(one: RankedCandidate) -> float:
        return one.candidate.seconds.middle / max(limits.most_s(one.candidate), 1e-9)

    near = min(judged, key=excess).candidate
    money = f" and {dollars(near.usd.middle)}" if near.usd else ""
    return f"the nearest is {near.name} with {seconds(near.seconds.middle)}{money}"


def _more(ranked: Sequence[RankedCandidate], field: CandidateSet, goal: str) -> MoreRuns | None:
    """What to run for a better answer; None where there is nothing to be gained."""
    if len(field.engines) == 1 and field.filters.engine is None:
        return MoreRuns("engines", [ranked[0].candidate], 1)
    if not ranked[0].candidate.measured:
        return MoreRuns("predicted", [ranked[0].candidate], 1)
    if len(ranked) == 1:
        few = ranked[0].candidate.evidence.runs < RANKING
        return MoreRuns("few", [ranked[0].candidate], RANKING) if few else None
    standing, two = ranked[0].standing, [one.candidate for one in ranked[:2]]
    assert standing is not None
    if standing.best < LIKELY:
        if not two[1].measured:
            return MoreRuns("predicted", [two[1]], 1)
        needed = repeats(two[0], two[1], field, goal)
        return MoreRuns("apart", two, needed if standing.near_best >= LIKELY else min(needed, MOST_REPEATS))
    if any(one.measured and one.evidence.runs < RANKING for one in two):
        return MoreRuns("few", [one for one in two if one.measured], RANKING)
    return None


def repeats(a: Candidate, b: Candidate, field: CandidateSet, goal: str) -> int:
    """How many runs of each would show the difference that two settings seem to have, at least five."""
    logs = [np.log(one.evidence.seconds) for one in field.candidates if one.measured]
    noise, _ = pooled_noise(logs)
    apart = abs(ratio_of_middles(a, b, goal))
    needed = math.ceil(2 * (CLEAR * noise / max(apart, NOTHING)) ** 2)
    return max(needed, RANKING, a.evidence.runs + 1, b.evidence.runs + 1)


def ratio_of_middles(a: Candidate, b: Candidate, goal: str) -> float:
    """How far apart the runs of two candidates lie, in logarithms."""
    rates = [one.usd_per_hour or 0.0 if goal == USD else 1.0 for one in (a, b)]
    means = [float(np.mean(np.log(one.evidence.seconds))) for one in (a, b)]
    return means[1] - means[0] + (math.log(rates[1] / rates[0]) if all(rates) else 0.0)


def select_workload(records: Sequence[Record], wanted: str | None) -> list[Record]:
    """The records of the workload that is asked for, or of the only one."""
    names = list(dict.fromkeys(record.workload for record in records))
    if wanted is None:
        if len(names) > 1:
            raise TrainoffError(f"there are runs of {join_names(names)}; say which with --workload {names[0]}")
        return list(records)
    if wanted not in names:
        raise TrainoffError(
            f"--workload {quote(wanted)}: no run of it here; {suggest(wanted, names, 'there are runs of')}"
        )
    return [record for record in records if record.workload == wanted]


def choose_target(records: Sequence[Record], target: float | None) -> float:
    """The target that is asked for, if it was timed; without one, the hardest that most settings reached."""
    timed = sorted({each for record in records for each in record.targets})
    metric = METRICS[records[0].metric]
    if not timed:
        raise TrainoffError(
            "no target was timed here, so nothing says when a run was good enough; run a study with `targets`"
        )
    if target is None:
        (own,) = by_workload(groups(records))
        found = headline_target(own)
        return found if found is not None else (min if metric.higher else max)(timed)
    if not any(str(target) in record.time_to_target for record in records):
        raise not_timed(records, target)
    return target


def check_filter(records: Sequence[Record], filters: AdviceFilter) -> None:
    """Refuse an engine, a machine or a size of node that no run had."""
    engines = list(dict.fromkeys(record.engine for record in records))
    if filters.engine is not None and filters.engine not in engines:
        hint = suggest(filters.engine, engines, "there are runs of")
        raise TrainoffError(f"--engine {quote(filters.engine)}: no run of it here; {hint}")
    own = [record for record in records if filters.engine in (None, record.engine)]
    machines = list(dict.fromkeys(str(name) for record in own if (name := record.params.get("machine"))))
    if filters.machine is not None and not machines:
        raise TrainoffError(f"--machine {quote(filters.machine)}: no run here names its machine; leave it out")
    if filters.machine is not None and filters.machine not in machines:
        raise TrainoffError(
            f"--machine {quote(filters.machine)}: no run was made on it, and nothing says how times go from one type "
            f"to another; {suggest(filters.machine, machines, 'there are runs on')}"
        )
    cores = sorted({record.cores for record in own})
    if filters.cores is not None and filters.cores not in cores:
        told = ", ".join(f"{each:g}" for each in cores)
        raise TrainoffError(
            f"--cores {filters.cores:g}: runs were made with {told} per node, and nothing says how times go with cores"
        )
    if not any(filters.holds(record) for record in records):
        raise TrainoffError("no run has all of --engine, --machine and --cores as you ask; leave one of them out")


def no_candidate_reason(field: CandidateSet, records: Sequence[Record], target: float, filters: AdviceFilter) -> str:
    """Why there is nothing to choose among."""
    kept = [record for record in records if filters.holds(record)]
    goal = target_text(kept[0].metric, target)
    if not any(record.time_to_target.get(str(target)) is not None and record.status == "ok" for record in kept):
        return f"not enough evidence: no run reached {goal}{_closest(kept)}"
    if filters.nodes is not None and (why := _nodes(kept, filters.nodes)):
        return why
    rows = sorted({rows_of(record) for record in kept})
    if filters.rows is not None and len(rows) == 1:
        told = f"{rows[0]:,.0f} rows" if rows[0] > 1 else "as many rows as there are"
        return f"--rows {filters.rows:g}: all runs had {told}, and a prediction needs two numbers of them"
    if filters.rows is not None and (why := _rows(kept, filters.rows, target)):
        return why
    if field.never:
        return (
            f"not enough evidence: what you ask for was run and did not reach {goal}{_closest(field.never[0].records)}"
        )
    return f"nothing here says how long that would take to {goal}: no engine was run with all else alike"


def _nodes(kept: Sequence[Record], nodes: int) -> str | None:
    every = curves(kept)
    if all(not curve.spreads for curve in every if curve.records):
        names = join_names(list(dict.fromkeys(record.engine for record in kept)))
        return f"--nodes {nodes}: {names} ran on one node by itself and cannot be spread over more"
    if all(len(curve.counts) < 2 for curve in every):
        counts = sorted({record.workers for record in kept})
        told = " or ".join(count(each, "node") for each in counts)
        lack = f"nothing was run with two numbers of nodes and all else alike (only {told})"
        return f"--nodes {nodes}: {lack}, so there is no model to predict by"
    return None


def _rows(kept: Sequence[Record], asked: float, target: float) -> str | None:
    """That so few rows, or more, were not enough."""
    reached = {rows_of(record) for record in kept if record.time_to_target.get(str(target)) is not None}
    few = [each for record in kept if asked <= (each := rows_of(record)) < min(reached)]
    goal = target_text(kept[0].metric, target)
    return f"not enough evidence: with {max(few):,.0f} rows no run reached {goal}" if few else None


def _closest(records: Iterable[Record]) -> str:
    """How far the best of some runs came."""
    known = [(record, record.result) for record in records if record.status == "ok" and record.result is not None]
    if not known:
        return "; none of them ended well, and `trainoff show` says why"
    metric = METRICS[known[0][0].metric]
    best, result = min(known, key=lambda one: metric.badness(one[1]))
    return f"; {best.engine} came closest with {metric.name} {quality(result)}"


MOST_TOLD = 3


def probability_text(chance: float) -> str:
    """A probability as a person says it: `93%`, `over 99%`, `under 1%`."""
    whole = round(100 * chance)
    return "over 99%" if whole == 100 else "under 1%" if whole == 0 else f"{whole}%"


def headline(advice: Advice) -> str:
    """The advice in one sentence."""
    best = advice.choice.candidate
    if advice.runner_up is None:
        asked = advice.candidate_set.filters.engine is not None and not advice.too_much
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
    return ": it is all that can be said, since nothing else got there" if advice.candidate_set.never else ""


def expectation_sentence(one: Candidate, metric: str, target: float, cold: bool) -> str:
    """What it takes, with intervals."""
    took, whole = one.seconds, one.overhead_s
    money = f" and {dollars(one.usd.middle)} ({_sums(one.usd)})" if one.usd else ""
    clock = "from cold" if cold else "of training"
    start = f"; with start and end {seconds(took.middle + whole)}" if whole is not None and not cold else ""
    took_text = f"{seconds(took.middle)} {clock} ({span(took.low, took.high)})"
    return f"It should reach {target_text(metric, target)} after {took_text}{money}{start}."


def _sums(usd: ExpectedRange) -> str:
    low, high = dollars(usd.low), dollars(usd.high)
    return high if low == high else f"{low} to {high}"


def probability_sentence(advice: Advice) -> str | None:
    """How likely it is the best choice; None where there is no other."""
    if advice.runner_up is None:
        return None
    predicted = sum(not one.candidate.measured for one in advice.ranked)
    how_many = "all" if predicted == len(advice.ranked) else str(predicted)
    also = f", {how_many} of them predicted" if predicted else ""
    what = "cheapest" if advice.objective == USD else "fastest"
    best, near = probability_text(advice.standing.best), probability_text(advice.standing.near_best)
    return (
        f"It is the {what} with a probability of {best}, and within {ALIKE:.0%} of the {what} with {near}, "
        f"among {len(advice.ranked)} that were weighed{also}."
    )


def limit_sentence(advice: Advice) -> str | None:
    """How likely the limits are kept."""
    if advice.limits == AdviceLimits():
        return None
    return f"The next run keeps {advice.limits} with a probability of {probability_text(advice.choice.kept)}."


def runner_up_sentences(advice: Advice) -> list[str]:
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


def _behind(advice: Advice, other: RankedCandidate) -> str:
    low, middle, high = advice.behind(other)
    what = "costs {} times as much" if advice.objective == USD else "takes {} times as long"
    return f"{_where(other.candidate)} {what.format(ratio_text(middle))} ({ratio_text(low)} to {ratio_text(high)})"


def reasons(advice: Advice, metric: str, target: float) -> list[str]:
    """What the advice rests on, the most important first."""
    best = advice.choice.candidate
    said = [_basis(best, target_text(metric, target))]
    shown = [one.candidate for one in advice.ranked[:2]]
    said += [sentence for one in shown if one.measured and (sentence := _held(one.group))]
    return [*said, *_left_out(advice, target_text(metric, target)), *_caution(advice)]


def _basis(one: Candidate, goal: str) -> str:
    """The runs that speak for a candidate, or the model that does."""
    runs, good = one.evidence.runs, len(one.evidence.seconds)
    if one.measured:
        return f"It reached {goal} in {good} of {count(runs, 'run')}."
    error = one.estimate.error if one.estimate else None
    checked = (
        "nothing could check that" if error is None else f"where it could be checked it was off by {share_text(error)}"
    )
    beyond = ", and this lies beyond what was run (extrapolated)" if one.extrapolated else ""
    return f"Nobody ran this: it is predicted from {count(good, 'run')} that got there{beyond}; {checked}."


def _held(group: SettingGroup) -> str | None:
    """What bounded a setting."""
    held = bottleneck(group.good[0]) if group.good else None
    return f"{group.name} was {held}." if held else None


def _left_out(advice: Advice, goal: str) -> list[str]:
    said = []
    if advice.candidate_set.never:
        names = _names([group.name for group in advice.candidate_set.never])
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
    measured = [one for one in advice.candidate_set.candidates if one.measured]
    hosts = {record.environment.get("host") for one in measured for record in one.group.records}
    said = []
    said += _shared_cpus(advice.choice.candidate)
    if advice.candidate_set.filters.rows is None and len({one.rows for one in advice.candidate_set.candidates}) > 1:
        said.append("The settings differ in their rows; --rows R chooses among those with R rows.")
    if len(hosts) > 1:
        said.append(f"The runs are from {len(hosts)} machines, whose times say little of each other.")
    if len(advice.candidate_set.engines) == 1 and advice.candidate_set.filters.engine is None:
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
    if any(len(one.evidence.seconds) > 1 for one in advice.candidate_set.candidates if one.measured):
        return ""
    return f": that runs of one setting lie {UNTIL_KNOWN:.0%} apart is a guess"


def next_runs_sentence(advice: Advice, command: bool) -> str | None:
    """What more runs would bring, before the command that makes them, if any; None where they would bring nothing."""
    more = advice.more
    if more is None:
        return None
    names = " and ".join(one.name for one in more.candidates)
    if more.reason == "engines":
        others = "run others, too:" if command else "add others to `engines` in the study, and run it again."
        return f"Not enough evidence to choose an engine; {others}"
    if more.reason == "predicted":
        return f"Run {names} before you rely on it:"
    if more.reason == "apart":
        if not more.practical:
            return f"It would take some {more.repeat:,} runs of each to tell {names} apart, which is hardly worth it."
        return f"About {more.repeat} runs of each would tell {names} apart:"
    return f"{more.repeat} runs of {'each' if len(more.candidates) > 1 else 'it'} would make it a finding:"
