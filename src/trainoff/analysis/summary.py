"""The closing sentences: which setting reached the target first, how certain that is, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainoff.analysis.bottleneck import bound_sentences, start_costs
from trainoff.analysis.compare import RANKING, Comparison, comparisons
from trainoff.analysis.correlation import batch_lines, correlation_lines
from trainoff.analysis.faults import without_faults
from trainoff.analysis.format import join_names, ratio_text, seconds, target_text
from trainoff.analysis.groups import SettingGroup, by_workload
from trainoff.analysis.ranking import headline_target, ranked
from trainoff.records import PUBLISHED, Record

MOST_NAMED = 3  # settings in one sentence
BARELY = 1.3  # times the share of one class: the most that an untrained network scores
WRONG = "wrong-result"
CHECKED = ("exact", "within tolerance")
SAME = "All of them did the same arithmetic, checked against the reference."
SAME_OTHERS = "All others did the same arithmetic, checked against the reference."


def closing_sentences(groups: Sequence[SettingGroup]) -> list[str]:
    """Return the closing sentences of a run, workload by workload, the most important one first."""
    workloads = by_workload(groups)
    if len(workloads) == 1:
        return _workload_sentences(groups)
    return [
        sentence if f"on {workload}" in sentence else f"{workload}: {sentence}"
        for found in workloads
        for workload in [found[0].first.workload]
        for sentence in _workload_sentences(found)
    ]


def remarks(groups: Sequence[SettingGroup]) -> list[str]:
    """Return sentences about start-up, bottlenecks, batch sizes and correlations."""
    limits = [*start_costs(groups), *bound_sentences(groups)]
    return [*limits, *batch_lines(groups), *correlation_lines(groups)]


def _workload_sentences(groups: Sequence[SettingGroup]) -> list[str]:
    groups = ranked(groups)
    return ["".join(headline(groups)), *cautions(groups)]


def headline(groups: Sequence[SettingGroup]) -> tuple[str, str]:
    """Return the first sentence on one workload in two parts: which setting won, and how the others compare."""
    groups = ranked(without_faults(groups))
    target = headline_target(groups)
    best = groups[0]
    if not best.good:
        return "No trial ended well", "."
    if target is None:
        if not any(group.first.targets for group in groups):
            return f"There was no target to reach{_best_result(best)}", "."
        return f"No engine reached a target; {best.name} came closest with {_result_text(best)}", "."
    time, label = best.time_to(target) or 0.0, target_text(best.first.metric, target)
    found = [each for each in comparisons(groups, target) if each.a.good]
    times = best.times_to(target)
    reached = sum(math.isfinite(each) for each in times)
    runs = f" in {reached} of {len(times)} runs" if reached < len(times) else ""
    if not found:
        return f"{best.name} reached {label} after {seconds(time)} of training{runs}", "."
    clauses = sorted((_other(each, target, time) for each in found[:MOST_NAMED]), key=lambda clause: clause[0])
    more = len(found) - MOST_NAMED
    others = f"{''.join(clauses)}{f'; {more} more on the board' if more > 0 else ''}."
    first = all(each.verdict == "slower" or each.indicative or not each.reached[0] for each in found)
    when = f"first: {seconds(time)}" if first else f"after {seconds(time)}"
    return f"{best.name} reached {label} {when} of training{runs}", others


def _best_result(best: SettingGroup) -> str:
    """Return the result of the best setting without a target, or its training time if it has no result."""
    train = best.median(lambda record: record.train_s)
    if best.median(lambda record: record.result) is not None:
        return f"; {best.name} came furthest with {_result_text(best)}"
    if train is None:
        return ", and no times or results were recorded; `trainoff show --json` prints what else is on record"
    return f"; {best.name} trained in the shortest time, {seconds(train)}"


def _result_text(best: SettingGroup) -> str:
    result, metric = best.median(lambda record: record.result), best.first.metric
    if result is None:
        return f"no {metric} on record"
    if metric != "accuracy":
        return f"{metric} {result:.4f}"
    classes = best.first.model.get("classes", math.inf)
    guess = ", no better than guessing" if result <= BARELY / classes else ""
    return f"an accuracy of {result:.4f}{guess}"


def _other(found: Comparison, target: float, best: float) -> str:
    """Return a clause on another setting: after a comma if it continues the sentence, else after a semicolon."""
    name, time = found.names[0], found.a.time_to(target)
    if not found.indicative and found.low is not None:
        ratio, spread = ratio_text(found.ratio), f"{ratio_text(found.low)} to {ratio_text(found.high)}"
        if found.verdict == "slower":
            return f", {ratio} times faster than {name} ({spread}, n = {found.n})"
        if found.verdict == "tie":
            return f", a tie with {name} ({spread} times as long, n = {found.n}, inside the band of {found.band})"
        if found.verdict == "undecided":
            return f"; {name} took {ratio} times as long, which is undecided ({spread}, n = {found.n})"
    undecided = "" if found.indicative or found.verdict == "slower" else ", which is undecided"
    reached, partly = found.reached[0], not found.indicative and found.reached[0] < found.n
    if time is None:
        trained = found.a.median(lambda record: record.train_s) or 0.0
        runs = f" in {found.n - reached} of {found.n} runs{undecided}" if partly else ""
        return f"; {name} had not reached it after {seconds(trained)}{runs}"
    if not best:
        return f"; {name} took {seconds(time)}"
    ratio = f"{time / best:.1f}"
    took = "about as long" if ratio == "1.0" else f"{ratio} times as long"
    return f"; {name} took {took}{f' and reached it in {reached} of {found.n} runs' if partly else ''}{undecided}"


def cautions(groups: Sequence[SettingGroup]) -> list[str]:
    """Return what limits the headline of one workload: few runs, and whether the arithmetic was the same."""
    good = [group for group in groups if group.good]
    few = [group for group in good if len(group.records) < RANKING]
    return [*([_few_runs(few, good)] if few else []), *arithmetic(groups)]


def _few_runs(few: Sequence[SettingGroup], good: Sequence[SettingGroup]) -> str:
    if len(few) < len(good):
        names = ", ".join(group.name for group in few[:MOST_NAMED]) + (" and others" if len(few) > MOST_NAMED else "")
        return f"Fewer than {RANKING} runs of {names}, so their results are indicative: --repeat {RANKING}."
    if all(record.kind == PUBLISHED for group in few for record in group.records):
        return "These figures were published, of one run each: indicative, and the arithmetic cannot be checked."
    runs = "One run each" if max(len(group.records) for group in few) == 1 else f"Fewer than {RANKING} runs each"
    return f"{runs}, so this is indicative: --repeat {RANKING} makes it a ranking."


def arithmetic(groups: Sequence[SettingGroup]) -> list[str]:
    """Return whether all settings did the same work; engines with a wrong result come first."""
    wrong = dict.fromkeys(record.engine for group in groups for record in group.records if record.status == WRONG)
    sentences = [f"{name} did other arithmetic than the reference and is excluded." for name in wrong]
    good = [group.good[0] for group in groups if group.good and group.first.kind != PUBLISHED]
    same = [record for record in good if record.equivalence.get("verdict") in CHECKED]
    others = [record for record in good if record not in same]
    if not others:
        return [*sentences, *([SAME_OTHERS if wrong else SAME] if len(good) > 1 else [])]
    in_several_modes = {record.engine for record in same}  # these are named with their mode
    different: dict[str, Record] = {}
    for record in others:  # only the best one of an engine counts
        several = record.engine in in_several_modes
        different.setdefault(f"{record.engine} {record.mode}" if several else record.engine, record)
    names_by_reason: dict[tuple[bool, str], list[str]] = {}
    for name, record in different.items():
        by_design = record.equivalence.get("verdict") == "different by design"
        names_by_reason.setdefault((by_design, record.equivalence.get("reason") or ""), []).append(name)
    clauses = [_different(names, by_design, reason) for (by_design, reason), names in names_by_reason.items()]
    return [*sentences, "; ".join(clauses) + ("; all others did the same arithmetic, checked." if same else ".")]


def _different(names: Sequence[str], by_design: bool, reason: str) -> str:
    if by_design:
        return f"{join_names(names)} {'solves' if len(names) == 1 else 'solve'} the problem another way ({reason})"
    return f"{join_names(names)} could not be checked against the reference" + (f" ({reason})" if reason else "")


def failure(record: Record) -> str:
    """Return what went wrong with a trial, in one sentence."""
    phase = f" in {record.phase}" if record.phase and record.status != "unsupported" else ""
    when = f" after {seconds(record.cold_s)}" if record.cold_s is not None else ""
    return f"{record.status}{phase}{when}: {record.reason}"
