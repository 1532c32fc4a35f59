"""Decide what to use within the limits, how certain that is, and which runs would make it more certain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainoff.analysis.advice.candidates import AdviceFilter, Candidate, CandidateSet
from trainoff.analysis.advice.posterior import ALIKE, Array, Standing, compute_standings, pooled_noise
from trainoff.analysis.bottleneck import bottleneck
from trainoff.analysis.compare import RANKING
from trainoff.analysis.format import (
    count,
    dollars,
    join_names,
    quality,
    ratio_text,
    seconds,
    some_names,
    span,
    target_text,
)
from trainoff.analysis.groups import by_workload, groups
from trainoff.analysis.ranking import headline_target, not_timed
from trainoff.analysis.scaling.curves import curves, rows_of
from trainoff.analysis.scaling.text import share_text
from trainoff.analysis.statistics import LEVEL, UNTIL_KNOWN
from trainoff.errors import TrainoffError
from trainoff.records import METRICS, Record
from trainoff.study.suggestions import quote, suggest

SECONDS, USD = "seconds", "usd"  # objectives to minimise
SAFE, HALF = 0.8, 0.5  # a limit counts as kept from SAFE on; nothing below HALF is advised
SURE, LIKELY = 0.95, 0.8
CLEAR = 2.0  # standard errors that a difference must be to show: then one of the two is better with 97 %
MOST_REPEATS = 30  # more runs to tell two settings apart are not worth it
NEARLY_ZERO = 1e-12  # dollars, so that logarithms exist


@dataclass(frozen=True)
class AdviceLimits:
    """What the training until the target may take; None: no limit."""

    max_seconds: float | None = None
    max_cost: float | None = None

    def __str__(self) -> str:
        options = {"--max-seconds": self.max_seconds, "--max-cost": self.max_cost}
        return " and ".join(f"{option} {value:g}" for option, value in options.items() if value is not None)

    def most_s(self, candidate: Candidate) -> float:
        """Return the seconds that a candidate may take; a budget is time at its price."""
        most = math.inf if self.max_seconds is None else self.max_seconds
        if self.max_cost is None or not candidate.usd_per_hour:
            return most
        return min(most, self.max_cost / candidate.usd_per_hour * 3600)


@dataclass(frozen=True, eq=False)
class RankedCandidate:
    """A candidate with its standing among those that keep the limits; None if it does not keep them."""

    candidate: Candidate
    kept: float  # the probability that the next run reaches the target within the limits
    standing: Standing | None


@dataclass(frozen=True)
class MoreRuns:
    """Further runs that would help: of these candidates, so many of each in all."""

    reason: str  # engines, predicted, apart, few
    candidates: Sequence[Candidate]
    repeat: int

    @property
    def practical(self) -> bool:
        return self.repeat <= MOST_REPEATS


@dataclass(frozen=True)
class Advice:
    """What to use, and how certain that is."""

    objective: str  # seconds or usd
    limits: AdviceLimits
    ranked: Sequence[RankedCandidate]  # those that keep the limits, the best first
    too_much: Sequence[RankedCandidate]  # those that do not
    unpriced: Sequence[Candidate]  # left out because the cost counts and theirs is not known
    candidate_set: CandidateSet
    more: MoreRuns | None

    @property
    def choice(self) -> RankedCandidate:
        return self.ranked[0]

    @property
    def standing(self) -> Standing:
        assert self.choice.standing is not None
        return self.choice.standing

    @property
    def runner_up(self) -> RankedCandidate | None:
        return self.ranked[1] if len(self.ranked) > 1 else None

    @property
    def verdict(self) -> str:
        """`sure`, `likely`, `either` if others are about as good, else `open`; `alone` if there is no other."""
        if len(self.ranked) == 1:
            return "alone"
        if self.standing.best >= LIKELY:
            return "sure" if self.standing.best >= SURE else "likely"
        return "either" if self.standing.near_best >= LIKELY else "open"

    @property
    def indicative(self) -> bool:
        """Whether there are fewer than five runs of the choice or of its runner-up."""
        return any(each.candidate.measured and each.candidate.evidence.runs < RANKING for each in self.ranked[:2])

    def behind(self, other: RankedCandidate) -> tuple[float, float, float]:
        """Return how many times as much another takes as the choice: low, median, high."""
        theirs, ours = (_value(each.candidate, self.objective) for each in (other, self.choice))
        low, middle, high = np.quantile(theirs / ours, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        return float(low), float(middle), float(high)


def decide(found: CandidateSet, limits: AdviceLimits) -> Advice:
    """Choose the fastest candidate within the limits; with a limit of time and with prices, the cheapest."""
    every = list(found.candidates)
    priced = [each for each in every if each.usd_per_hour is not None]
    cost_counts = limits.max_cost is not None or (limits.max_seconds is not None and bool(priced))
    objective = USD if limits.max_seconds is not None and priced else SECONDS
    considered = priced if cost_counts else every
    if not considered:
        raise TrainoffError(f"{limits}: no candidate has a known price; name a price book with --prices FILE")
    unranked = [RankedCandidate(each, each.posterior.kept(limits.most_s(each)), None) for each in considered]
    allowed = _allowed(unranked, limits)
    standings = compute_standings([_value(each.candidate, objective) for each in allowed])
    ranked = [RankedCandidate(each.candidate, each.kept, one) for each, one in zip(allowed, standings, strict=True)]
    ranked.sort(key=lambda each: each.standing.regret if each.standing else math.inf)
    rest = [each for each in unranked if each not in allowed]
    unpriced = [each for each in every if each not in considered]
    return Advice(objective, limits, ranked, rest, unpriced, found, _more(ranked, found, objective))


def _value(candidate: Candidate, objective: str) -> Array:
    """Return what is to be minimised, for each draw, repeated runs included."""
    if objective == SECONDS:
        return candidate.posterior.whole
    return np.maximum(candidate.posterior.whole * (candidate.usd_per_hour or 0.0) / 3600, NEARLY_ZERO)


def _allowed(unranked: Sequence[RankedCandidate], limits: AdviceLimits) -> list[RankedCandidate]:
    """Return the candidates that are safe to keep the limits; if none is, the likeliest if it is likely enough."""
    if limits == AdviceLimits():
        return list(unranked)
    safe = [each for each in unranked if each.kept >= SAFE]
    if safe:
        return safe
    best = max(unranked, key=lambda each: (each.kept, -float(np.median(each.candidate.posterior.typical))))
    if best.kept >= HALF:
        return [best]

    def excess(each: RankedCandidate) -> float:
        return each.candidate.seconds.middle / max(limits.most_s(each.candidate), 1e-9)

    nearest = min(unranked, key=excess).candidate
    cost = f" and {dollars(nearest.usd.middle)}" if nearest.usd else ""
    hint = f"the nearest is {nearest.name} with {seconds(nearest.seconds.middle)}{cost}"
    raise TrainoffError(f"{limits}: no candidate is likely to keep that; {hint}")


def _more(ranked: Sequence[RankedCandidate], found: CandidateSet, objective: str) -> MoreRuns | None:
    """Return the runs that would make the advice more certain; None if there is nothing to gain."""
    two = [each.candidate for each in ranked[:2]]
    if len(found.engines) == 1 and found.filters.engine is None:
        return MoreRuns("engines", two[:1], 1)
    if not two[0].measured:
        return MoreRuns("predicted", two[:1], 1)
    if len(two) == 1:
        return MoreRuns("few", two, RANKING) if two[0].evidence.runs < RANKING else None
    standing = ranked[0].standing
    assert standing is not None
    if standing.best < LIKELY:
        if not two[1].measured:
            return MoreRuns("predicted", two[1:], 1)
        needed = repeats(two[0], two[1], found, objective)
        return MoreRuns("apart", two, needed if standing.near_best >= LIKELY else min(needed, MOST_REPEATS))
    if any(each.measured and each.evidence.runs < RANKING for each in two):
        return MoreRuns("few", [each for each in two if each.measured], RANKING)
    return None


def repeats(a: Candidate, b: Candidate, found: CandidateSet, objective: str) -> int:
    """Return how many runs of each would show the apparent difference of two settings, at least five."""
    noise, _ = pooled_noise([np.log(each.evidence.seconds) for each in found.candidates if each.measured])
    prices = [each.usd_per_hour or 0.0 if objective == USD else 1.0 for each in (a, b)]
    means = [float(np.mean(np.log(each.evidence.seconds))) for each in (a, b)]
    difference = abs(means[1] - means[0] + (math.log(prices[1] / prices[0]) if all(prices) else 0.0))
    needed = math.ceil(2 * (CLEAR * noise / max(difference, NEARLY_ZERO)) ** 2)
    return max(needed, RANKING, a.evidence.runs + 1, b.evidence.runs + 1)


def select_workload(records: Sequence[Record], wanted: str | None) -> list[Record]:
    """Return the records of the workload asked for, or of the only one."""
    names = list(dict.fromkeys(record.workload for record in records))
    if wanted is None:
        if len(names) > 1:
            raise TrainoffError(f"there are runs of {join_names(names)}; choose one with --workload {names[0]}")
        return list(records)
    if wanted not in names:
        hint = suggest(wanted, names, "there are runs of")
        raise TrainoffError(f"--workload {quote(wanted)}: no run of it here; {hint}")
    return [record for record in records if record.workload == wanted]


def choose_target(records: Sequence[Record], target: float | None) -> float:
    """Return the target asked for if it was timed; without one, the hardest that most settings reached."""
    timed = sorted({each for record in records for each in record.targets})
    if not timed:
        raise TrainoffError(
            "no target was timed here, so no run is known to be good enough; run a study with `targets`"
        )
    if target is None:
        (members,) = by_workload(groups(records))
        found = headline_target(members)
        return found if found is not None else (min if METRICS[records[0].metric].higher else max)(timed)
    if not any(str(target) in record.time_to_target for record in records):
        raise not_timed(records, target)
    return target


def check_filter(records: Sequence[Record], filters: AdviceFilter) -> None:
    """Raise an error for an engine, a machine or a size of node that no run had."""
    engines = list(dict.fromkeys(record.engine for record in records))
    if filters.engine is not None and filters.engine not in engines:
        hint = suggest(filters.engine, engines, "there are runs of")
        raise TrainoffError(f"--engine {quote(filters.engine)}: no run of it here; {hint}")
    of_engine = [record for record in records if filters.engine in (None, record.engine)]
    machines = list(dict.fromkeys(str(name) for record in of_engine if (name := record.params.get("machine"))))
    if filters.machine is not None and not machines:
        raise TrainoffError(f"--machine {quote(filters.machine)}: no run here names its machine; leave it out")
    if filters.machine is not None and filters.machine not in machines:
        raise TrainoffError(
            f"--machine {quote(filters.machine)}: no run was made on it, and times cannot be predicted for another "
            f"type of machine; {suggest(filters.machine, machines, 'there are runs on')}"
        )
    cores = sorted({record.cores for record in of_engine})
    if filters.cores is not None and filters.cores not in cores:
        listed = ", ".join(f"{each:g}" for each in cores)
        raise TrainoffError(
            f"--cores {filters.cores:g}: runs were made with {listed} per node, and times cannot be predicted for "
            "other numbers of cores"
        )
    if not any(filters.holds(record) for record in records):
        raise TrainoffError("no run matches --engine, --machine and --cores together; leave one of them out")


def no_candidate_reason(found: CandidateSet, records: Sequence[Record], target: float) -> str:
    """Return why there is no candidate."""
    filters = found.filters
    kept = [record for record in records if filters.holds(record)]
    label = target_text(kept[0].metric, target)
    if not any(record.time_to_target.get(str(target)) is not None and record.status == "ok" for record in kept):
        return f"not enough evidence: no run reached {label}{_closest(kept)}"
    if filters.nodes is not None and (reason := _no_other_nodes(kept, filters.nodes)):
        return reason
    rows = sorted({rows_of(record) for record in kept})
    if filters.rows is not None and len(rows) == 1:
        had = f"{rows[0]:,.0f} rows" if rows[0] > 1 else "as many rows as there are"
        return f"--rows {filters.rows:g}: all runs had {had}, and a prediction needs two numbers of rows"
    if filters.rows is not None:
        enough = min(rows_of(record) for record in kept if record.time_to_target.get(str(target)) is not None)
        few = [each for each in rows if filters.rows <= each < enough]
        if few:
            return f"not enough evidence: with {max(few):,.0f} rows no run reached {label}"
    if found.never:
        return f"not enough evidence: this was run and did not reach {label}{_closest(found.never[0].records)}"
    return f"the time to {label} cannot be predicted there: no engine was run with all else alike"


def _no_other_nodes(kept: Sequence[Record], nodes: int) -> str | None:
    every = curves(kept)
    if all(not curve.spreads for curve in every if curve.records):
        names = join_names(list(dict.fromkeys(record.engine for record in kept)))
        return f"--nodes {nodes}: {names} ran on one node by itself and cannot use more"
    if all(len(curve.counts) < 2 for curve in every):
        counts = " or ".join(count(each, "node") for each in sorted({record.workers for record in kept}))
        return (
            f"--nodes {nodes}: nothing was run with two numbers of nodes and all else alike (only {counts}), "
            "so there is no model to predict by"
        )
    return None


def _closest(records: Iterable[Record]) -> str:
    """Return how close the best of some runs came to the target."""
    known = [(record, record.result) for record in records if record.status == "ok" and record.result is not None]
    if not known:
        return "; none of them ended well, see `trainoff show`"
    metric = METRICS[known[0][0].metric]
    best, result = min(known, key=lambda pair: metric.badness(pair[1]))
    return f"; {best.engine} came closest with {metric.name} {quality(result)}"


def probability_text(probability: float) -> str:
    """Format a probability: `93%`, `over 99%`, `under 1%`."""
    whole = round(100 * probability)
    return "over 99%" if whole == 100 else "under 1%" if whole == 0 else f"{whole}%"


def advice_sentence(advice: Advice) -> str:
    """Return the advice in one sentence."""
    best = _with_nodes(advice.choice.candidate)
    if advice.runner_up is None:
        if advice.candidate_set.filters.engine is not None and not advice.too_much:
            return f"Asked about: {best}."
        alone = ": nothing else reached the target" if advice.candidate_set.never else ""
        alone = f": nothing else is sure enough to keep {advice.limits}" if advice.too_much else alone
        return f"Use {best}{alone}."
    other = _with_nodes(advice.runner_up.candidate)
    if advice.verdict == "either":
        return f"Use {best}, or {other}: either will do, since these runs cannot tell them apart."
    if advice.verdict == "open":
        return f"Not enough evidence to choose: {best} may be the best, but so may {other}."
    return f"Use {best}."


def _with_nodes(candidate: Candidate) -> str:
    return f"{candidate.name} on {candidate.place}"


def expectation_sentence(candidate: Candidate, metric: str, target: float, cold: bool) -> str:
    """Return the expected time and cost of a candidate, with intervals."""
    took, overhead, usd = candidate.seconds, candidate.overhead_s, candidate.usd
    cost = ""
    if usd:
        low, high = dollars(usd.low), dollars(usd.high)
        cost = f" and {dollars(usd.middle)} ({high if low == high else f'{low} to {high}'})"
    whole = f"; with start and end {seconds(took.middle + overhead)}" if overhead is not None and not cold else ""
    time = f"{seconds(took.middle)} {'from cold' if cold else 'of training'} ({span(took.low, took.high)})"
    return f"It should reach {target_text(metric, target)} after {time}{cost}{whole}."


def probability_sentence(advice: Advice) -> str | None:
    """Return the probability that it is the best choice; None if there is no other."""
    if advice.runner_up is None:
        return None
    predicted = sum(not each.candidate.measured for each in advice.ranked)
    number = "all" if predicted == len(advice.ranked) else str(predicted)
    also = f", {number} of them predicted" if predicted else ""
    what = "cheapest" if advice.objective == USD else "fastest"
    best, close = probability_text(advice.standing.best), probability_text(advice.standing.near_best)
    return (
        f"It is the {what} with a probability of {best}, and within {ALIKE:.0%} of the {what} with {close}, "
        f"among {len(advice.ranked)} that were considered{also}."
    )


def limit_sentence(advice: Advice) -> str | None:
    """Return the probability that the limits are kept; None without limits."""
    if advice.limits == AdviceLimits():
        return None
    return f"The next run keeps {advice.limits} with a probability of {probability_text(advice.choice.kept)}."


def runner_up_sentences(advice: Advice) -> list[str]:
    """Return the next best candidate, and the best ones of another engine and among those that were run."""
    if advice.runner_up is None:
        return []
    sentences = [f"Runner-up: {_behind(advice, advice.runner_up)}."]
    engine = advice.choice.candidate.record.engine
    others = [each for each in advice.ranked if each.candidate.record.engine != engine]
    if others and others[0] is not advice.runner_up:
        sentences.append(f"The best of another engine: {_behind(advice, others[0])}.")
    run = [each for each in advice.ranked if each.candidate.measured]
    if run and run[0] not in (*advice.ranked[:2], *others[:1]):
        sentences.append(f"The best that was run: {_behind(advice, run[0])}.")
    return sentences


def _behind(advice: Advice, other: RankedCandidate) -> str:
    low, middle, high = map(ratio_text, advice.behind(other))
    verb, much = ("costs", "much") if advice.objective == USD else ("takes", "long")
    return f"{_with_nodes(other.candidate)} {verb} {middle} times as {much} ({low} to {high})"


def reasons(advice: Advice, metric: str, target: float) -> list[str]:
    """Return what the advice rests on, the most important first."""
    label = target_text(metric, target)
    sentences = [_basis(advice.choice.candidate, label)]
    for each in advice.ranked[:2]:
        group = each.candidate.group
        if each.candidate.measured and group.good and (found := bottleneck(group.good[0])):
            sentences.append(f"{group.name} was {found}.")
    if advice.candidate_set.never:
        sentences.append(f"Never reached {label}: {some_names(group.name for group in advice.candidate_set.never)}.")
    if advice.too_much:
        names = some_names(each.candidate.name for each in advice.too_much)
        sentences.append(f"Not sure enough to keep {advice.limits}: {names}.")
    if advice.unpriced:
        sentences.append(f"Left out for lack of a price: {some_names(each.name for each in advice.unpriced)}.")
    return [*sentences, *_cautions(advice)]


def _basis(candidate: Candidate, label: str) -> str:
    runs, good = candidate.evidence.runs, len(candidate.evidence.seconds)
    if candidate.estimate is None:
        return f"It reached {label} in {good} of {count(runs, 'run')}."
    error = candidate.estimate.error
    checked = (
        "it could not be checked" if error is None else f"where it could be checked it was off by {share_text(error)}"
    )
    beyond = ", and this lies beyond what was run (extrapolated)" if candidate.extrapolated else ""
    reached = f"{count(good, 'run')} that reached the target"
    return f"This was not run: it is predicted from {reached}{beyond}; {checked}."


def _cautions(advice: Advice) -> list[str]:
    found, choice = advice.candidate_set, advice.choice.candidate
    measured = [each for each in found.candidates if each.measured]
    hosts = {record.environment.get("host") for each in measured for record in each.group.records}
    cpus, cores = choice.record.environment.get("cpus"), choice.nodes * choice.record.cores
    sentences = []
    if not choice.measured and choice.record.cluster == "processes" and cpus and cores > cpus:
        sentences.append(
            f"That machine has {cpus} CPUs for {cores:g} cores: they would be shared, which the model does not include."
        )
    if found.filters.rows is None and len({each.rows for each in found.candidates}) > 1:
        sentences.append("The settings differ in their rows; --rows R chooses among those with R rows.")
    if len(hosts) > 1:
        sentences.append(f"The runs are from {len(hosts)} machines, whose times are hardly comparable.")
    if len(found.engines) == 1 and found.filters.engine is None:
        sentences.append(f"Only {choice.record.engine} was run, so this does not say which engine to use.")
    if advice.indicative:
        repeated = any(len(each.evidence.seconds) > 1 for each in measured)
        guess = "" if repeated else f": that runs of one setting lie {UNTIL_KNOWN:.0%} apart is an assumption"
        sentences.append(f"{_few_runs(advice)}, so this is indicative{guess}.")
    return sentences


def _few_runs(advice: Advice) -> str:
    """Return which of the first two has too few runs."""
    two = [each.candidate for each in advice.ranked[:2] if each.candidate.measured]
    few = [each for each in two if each.evidence.runs < RANKING]
    if len(few) < len(two):
        return f"{count(few[0].evidence.runs, 'run')} of {few[0].name} only"
    return "One run each" if all(each.evidence.runs == 1 for each in few) else f"Fewer than {RANKING} runs each"


def next_runs_sentence(advice: Advice, command: bool) -> str | None:
    """Return what more runs would show, before the command that makes them, if any; None if they would not help."""
    more = advice.more
    if more is None:
        return None
    names = " and ".join(each.name for each in more.candidates)
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
