"""The answer: which engine got there first, how sure that is, and what stands in the way of believing it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainoff.analysis.compare import RANKING, Comparison, comparisons
from trainoff.analysis.faults import without_faults
from trainoff.analysis.format import join_names, ratio_text, seconds, target_text
from trainoff.analysis.groups import SettingGroup
from trainoff.analysis.ranking import headline_target, ranked
from trainoff.records import PUBLISHED, Record

MOST_TOLD = 3  # others that are told beside the best
BARELY = 1.3  # times the share of one class: what a network that has learnt nothing scores at most
WRONG = "wrong-result"
CHECKED = ("exact", "within tolerance")
SAME = "All of them did the same arithmetic, checked against the reference."
SAME_OTHERS = "All others did the same arithmetic, checked against the reference."


def closing_sentences(groups: Sequence[SettingGroup]) -> list[str]:
    """The closing sentences of a run, workload by workload, the most important one first."""
    workloads = list(dict.fromkeys(group.first.workload for group in groups))
    said = []
    for workload in workloads:
        own = ranked([group for group in groups if group.first.workload == workload])
        told = ["".join(headline(own)), *cautions(own)]
        several = len(workloads) > 1
        said += [s if f"on {workload}" in s or not several else f"{workload}: {s}" for s in told]
    return said


def headline(groups: Sequence[SettingGroup]) -> tuple[str, str]:
    """The first sentence on one workload, whose settings are ranked, in two parts: who won, and how the others did."""
    groups = ranked(without_faults(groups))
    target = headline_target(groups)
    best = groups[0]
    if not best.good:
        return "No trial ended well", "."
    if target is None:
        if not any(group.first.targets for group in groups):
            return f"There was no target to reach{_furthest(best)}", "."
        return f"No engine reached a target; {best.name} came closest with {_closest(best)}", "."
    time, goal = best.time_to(target) or 0.0, target_text(best.first.metric, target)
    found = [one for one in comparisons(groups, target) if one.a.good]
    if not found:
        return f"{best.name} reached {goal} after {seconds(time)} of training{_partly(best, target)}", "."
    said = [_beside(one, target, time) for one in found[:MOST_TOLD]]
    beside = "".join(sorted(said, key=lambda one: one[0]))  # in their order, what needs only a comma before the rest
    first = all(one.verdict == "slower" or one.indicative or not one.reached[0] for one in found)
    head = f"first: {seconds(time)}" if first else f"after {seconds(time)}"
    more = _and_more(len(found) - MOST_TOLD)
    return f"{best.name} reached {goal} {head} of training{_partly(best, target)}", f"{beside}{more}."


def _partly(best: SettingGroup, target: float) -> str:
    """In how many of its runs the best one got there, where not in all."""
    times_to = best.times_to(target)
    reached = sum(math.isfinite(time) for time in times_to)
    return f" in {reached} of {len(times_to)} runs" if reached < len(times_to) else ""


def _furthest(best: SettingGroup) -> str:
    """What the best of a race without a target has done; where nobody looked how good it became, how long it took."""
    train = best.median(lambda record: record.train_s)
    if best.median(lambda record: record.result) is not None:
        return f"; {best.name} came furthest with {_closest(best)}"
    if train is None:
        return ", and nobody wrote down times or results; `trainoff show --json` has what else is on record"
    return f"; {best.name} trained in the shortest time, {seconds(train)}"


def _closest(best: SettingGroup) -> str:
    result, metric = best.median(lambda record: record.result), best.first.metric
    if result is None:
        return f"no {metric} on record"
    if metric != "accuracy":
        return f"{metric} {result:.4f}"
    classes = best.first.model.get("classes", math.inf)
    guess = ", no better than guessing" if result <= BARELY / classes else ""
    return f"an accuracy of {result:.4f}{guess}"


def _beside(found: Comparison, target: float, best: float) -> str:
    """How another setting did beside the best: with a comma what says more of the best, else with a semicolon."""
    name, time = found.names[0], found.a.time_to(target)
    if not found.indicative and found.low is not None:
        spread = f"{ratio_text(found.low)} to {ratio_text(found.high)}"
        if found.verdict == "slower":
            return f", {ratio_text(found.ratio)} times faster than {name} ({spread}, n = {found.n})"
        if found.verdict == "tie":
            return f", a tie with {name} ({spread} times as long, n = {found.n}, inside the band of {found.band})"
        if found.verdict == "undecided":
            return (
                f"; {name} took {ratio_text(found.ratio)} times as long, which is undecided ({spread}, n = {found.n})"
            )
    if time is None:
        spent = found.a.median(lambda record: record.train_s) or 0.0
        return f"; {name} had not got there after {seconds(spent)}{_share(found)}"
    if not best:
        return f"; {name} took {seconds(time)}"
    ratio = f"{time / best:.1f}"
    took = "about as long" if ratio == "1.0" else f"{ratio} times as long"
    return f"; {name} took {took}{_share(found) or _open(found)}"


def _share(found: Comparison) -> str:
    """In how many of the runs it got there, where not in all."""
    if found.indicative or found.reached[0] == found.n:
        return ""
    return f" and got there in {found.reached[0]} of {found.n} runs{_open(found)}"


def _open(found: Comparison) -> str:
    """That the runs do not decide it, where there are enough to ask them."""
    return "" if found.indicative or found.verdict == "slower" else ", which is undecided"


def _and_more(others: int) -> str:
    return f"; {others} more on the board" if others > 0 else ""


def cautions(groups: Sequence[SettingGroup]) -> list[str]:
    """What to keep in mind of the headline of one workload: few runs, other arithmetic, or that it was the same."""
    few = _caution(groups)
    return [*([few] if few else []), *arithmetic(groups)]


def _caution(groups: Sequence[SettingGroup]) -> str | None:
    tried = [group for group in groups if group.good]
    few = [group for group in tried if len(group.records) < RANKING]
    if not few:
        return None
    if len(few) < len(tried):
        names = ", ".join(group.name for group in few[:MOST_TOLD]) + (" and others" if len(few) > MOST_TOLD else "")
        return f"Fewer than {RANKING} runs of {names}, so what is said of them is indicative: --repeat {RANKING}."
    most = max(len(group.records) for group in few)
    if all(record.kind == PUBLISHED for group in few for record in group.records):
        return "These figures were published, of one run each: indicative, and nobody can check the arithmetic."
    runs = "One run each" if most == 1 else f"Fewer than {RANKING} runs each"
    return f"{runs}, so this is indicative: --repeat {RANKING} makes it a ranking."


def arithmetic(groups: Sequence[SettingGroup]) -> list[str]:
    """Whether what was timed was the same work; who did it wrong is told first."""
    wrong = dict.fromkeys(record.engine for group in groups for record in group.records if record.status == WRONG)
    said = [f"{name} did other arithmetic than the reference, and is out of the race." for name in wrong]
    good = [group.good[0] for group in groups if group.good and group.first.kind != PUBLISHED]
    same = [record for record in good if record.equivalence.get("verdict") in CHECKED]
    others = [record for record in good if record not in same]
    if not others:  # nor, perhaps, any at all
        return [*said, *([SAME_OTHERS if wrong else SAME] if len(good) > 1 else [])]
    both = {record.engine for record in same}  # these are told with their mode
    odd: dict[str, Record] = {}
    for record in others:  # the best one speaks for its engine
        odd.setdefault(f"{record.engine} {record.mode}" if record.engine in both else record.engine, record)
    alike: dict[tuple[bool, str], list[str]] = {}  # who differs in the same way is told together
    for name, record in odd.items():
        meant = record.equivalence.get("verdict") == "different by design"
        alike.setdefault((meant, record.equivalence.get("reason") or ""), []).append(name)
    told = [_odd(names, meant, reason) for (meant, reason), names in alike.items()]
    return [*said, "; ".join(told) + ("; all others did the same arithmetic, checked." if same else ".")]


def _odd(names: Sequence[str], meant: bool, reason: str) -> str:
    if meant:
        return f"{join_names(names)} {'solves' if len(names) == 1 else 'solve'} the problem another way ({reason})"
    return f"{join_names(names)} could not be checked against the reference" + (f" ({reason})" if reason else "")


def failure(record: Record) -> str:
    """What went wrong with a trial, in one sentence."""
    where = f" in {record.phase}" if record.phase and record.status not in ("unsupported",) else ""
    when = f" after {seconds(record.cold_s)}" if record.cold_s is not None else ""
    return f"{record.status}{where}{when}: {record.reason}"
