"""`trainoff advise`: what to use for a target, how sure that is, and why."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainoff.analysis import newest, priced, unpriced, usual_settings
from trainoff.analysis.advice import (
    Advice,
    AdviceFilter,
    AdviceLimits,
    Candidate,
    RankedCandidate,
    check_filter,
    choose_target,
    decide,
    expectation_sentence,
    find_candidates,
    headline,
    limit_sentence,
    next_runs_sentence,
    no_candidate_reason,
    probability_sentence,
    probability_text,
    reasons,
    runner_up_sentences,
    select_workload,
)
from trainoff.analysis.format import dollars, seconds, span, target_text
from trainoff.analysis.ranking import check_target
from trainoff.analysis.scaling import nodes_key
from trainoff.cli import common
from trainoff.cli.scale import NODES, ROWS, said, study_copy
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.reproductions.published import read_records, require_records
from trainoff.study.machines import PriceBook

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


MOST_NODES = 100_000


@dataclass(frozen=True)
class AdviseOptions:
    """What is asked for, as it was typed."""

    folder: Path
    target: float | None = None
    limits: AdviceLimits = field(default_factory=AdviceLimits)
    wish: AdviceFilter = field(default_factory=AdviceFilter)
    cold: bool = False
    workload: str | None = None


@dataclass(frozen=True)
class AdviceResult:
    """The advice, the records it is from, and what the other clock would say."""

    advice: Advice
    target: float
    metric: str
    workload: str
    cold: bool
    other_clock: str | None  # what would be chosen by the other clock, if that is something else
    command: str | None  # that would tell more
    unpriced: str | None = None  # why the book that was given says nothing of money


def advise(question: AdviseOptions, book: PriceBook | None, as_json: bool, console: Console) -> int:
    """Answer with sentences and a table, or as JSON; 1 if a record is damaged."""
    _check(question)
    records, damaged = require_records(question.folder)
    kept = newest(records)
    answer = answer_to(question, priced(kept, book) if book else kept, book)
    if as_json:
        print(json.dumps(for_programs(answer), indent=1, allow_nan=False))
    else:
        show(answer, console)
    return warn(damaged)


def answer_to(question: AdviseOptions, records: Sequence[Record], book: PriceBook | None = None) -> AdviceResult:
    """The answer that records give; what they cannot say is one sentence."""
    own = select_workload(records, question.workload)
    lack = unpriced(own, book) if book else None
    if lack and question.limits.max_cost is not None and all(record.usd_per_hour is None for record in own):
        raise TrainoffError(f"--max-cost {question.limits.max_cost:g}: {lack.removesuffix('.')}")
    target = choose_target(own, question.target)
    check_filter(own, question.wish)
    advice = _advice(question, own, target, question.cold)
    return AdviceResult(
        advice, target, own[0].metric, own[0].workload, question.cold,
        _other_clock(question, own, target, advice), _command(question, own, advice), lack,
    )  # fmt: skip


def _check(question: AdviseOptions) -> None:
    wish, limits = question.wish, question.limits
    asked = {"--max-seconds": limits.max_seconds, "--max-cost": limits.max_cost, "--cores": wish.cores}
    for option, value in {**asked, "--rows": wish.rows}.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise TrainoffError(f"{option} {value:g}: give a number above 0")
    if wish.nodes is not None and not 1 <= wish.nodes <= MOST_NODES:
        raise TrainoffError(f"--nodes {wish.nodes}: give a whole number from 1 to {MOST_NODES:,}")
    if wish.machine is not None and wish.cores is not None:
        raise TrainoffError("--machine and --cores both say how large a node is; give one of them")
    check_target(question.target)


def _advice(question: AdviseOptions, own: Sequence[Record], target: float, cold: bool) -> Advice:
    found = find_candidates(own, target, question.wish, cold)
    if not found.candidates:
        why = no_candidate_reason(found, own, target, question.wish)
        raise TrainoffError(f"{question.folder}: {why}; {_remedy(question, own)}")
    return decide(found, question.limits)


def _other_clock(question: AdviseOptions, own: Sequence[Record], target: float, advice: Advice) -> str | None:
    """What would be chosen by the other clock, where that is another setting; only without limits."""
    if question.limits != AdviceLimits() or len(advice.ranked) == 1:
        return None
    found = find_candidates(own, target, question.wish, not question.cold)
    if not found.candidates:
        return None
    other = decide(found, AdviceLimits()).choice.candidate.name
    return None if other == advice.choice.candidate.name else other


def _remedy(question: AdviseOptions, own: Sequence[Record]) -> str:
    """What would let a question be answered which cannot be: runs, by their command, or another engine."""
    wish = question.wish
    kept = [record for record in own if wish.holds(record)]
    if (wish.nodes or 1) > 1 and all(record.mode == "single" for record in kept):
        return "`trainoff engines` lists those that can"
    sets = _sizes(kept[0], wish.nodes, wish.rows)
    if not sets and any(one.status == "ok" for one in kept):
        steps = "max_iter" if all("max_iter" in record.params for record in kept) else "epochs"
        sets = {steps: f"{2 * max(record.params.get(steps) or 1 for record in kept):g}"}
    words = _with(said(question.folder, kept[0].study, ()), sets)
    words += ["--engine", wish.engine] if wish.engine else []
    words += [] if sets else ["--retry", "failed"]
    return f"run this: {shlex.join(words)}"


def _sizes(record: Record, nodes: int | None, rows: float | None) -> dict[str, str]:
    """Numbers of nodes and rows, as the keys of a study say them."""
    sets = {} if nodes is None else {nodes_key(record): str(nodes)}
    return sets if rows is None else {**sets, ROWS: f"{rows:.0f}"}


def _with(words: Sequence[str], sets: Mapping[str, str]) -> list[str]:
    """A command with these keys set, each where it was set before, else at the end."""
    made, left = list(words), dict(sets)
    for place, (option, value) in enumerate(pairwise(words), 1):
        key = value.partition("=")[0].strip()
        if option == "--set" and (same := next((one for one in left if key == one or {key, one} == {*NODES}), None)):
            made[place] = f"{same}={left.pop(same)}"
    return [*made, *(word for key, value in left.items() for word in ("--set", f"{key}={value}"))]


def _command(question: AdviseOptions, own: Sequence[Record], advice: Advice) -> str | None:
    """The command of the runs that would tell more; several, where one cannot make them all."""
    more = advice.more
    if more is None or not more.practical:
        return None
    if more.reason == "engines":
        first = more.candidates[0].record
        others = _untried(question.folder, first, advice.candidate_set.engines)
        return shlex.join([*said(question.folder, first.study, ()), *others]) if others else None
    several = len({record.workload for record in read_records(question.folder)[0]}) > 1
    engines: dict[tuple[str, ...], list[str]] = {}
    for one in more.candidates:
        words = _words(question.folder, one, own, more.reason == "predicted")
        words += ["--set", f"workload={one.record.workload}"] if several else []
        engines.setdefault(tuple(words), []).append(one.record.engine)
    ends = ["--repeat", str(more.repeat)] if more.repeat > 1 else []
    return " && ".join(
        shlex.join([*words, *(word for name in dict.fromkeys(names) for word in ("--engine", name)), *ends])
        for words, names in engines.items()
    )


def _words(folder: Path, one: Candidate, own: Sequence[Record], predicted: bool) -> list[str]:
    """The command that ran a candidate's study, with its own nodes and rows where the study does not say them."""
    words, record = said(folder, one.record.study, ()), one.record
    known = {value.partition("=")[0].strip() for option, value in pairwise(words) if option == "--set"}
    spread = record.mode != "single" and (predicted or bool(known & {*NODES}))
    several = len({each.params.get(ROWS) for each in own}) > 1
    rows = one.rows > 1 and ((predicted and several) or ROWS in known)
    return _with(words, _sizes(record, one.nodes if spread else None, one.rows if rows else None))


def _untried(folder: Path, record: Record, tried: Collection[str]) -> list[str]:
    """The engines of the study that have no record yet, as options."""
    copy = study_copy(folder, record.study)
    try:
        listed = tomllib.loads(copy.read_text(errors="replace")).get("engines", []) if copy else []
    except tomllib.TOMLDecodeError:  # somebody has edited the copy
        listed = []
    others = [str(name) for name in listed if name not in tried] if isinstance(listed, list) else []
    return [word for name in others for word in ("--engine", name)]


MOST_SHOWN = 8


class Answered(Protocol):
    """The advice, what it is about, and what would tell more."""

    @property
    def advice(self) -> Advice: ...
    @property
    def target(self) -> float: ...
    @property
    def metric(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def cold(self) -> bool: ...
    @property
    def other_clock(self) -> str | None: ...
    @property
    def command(self) -> str | None: ...
    @property
    def unpriced(self) -> str | None: ...


def show(answer: Answered, console: Console) -> None:
    """Print what to use, how sure that is, why, who else there is, and what would tell more."""
    advice = answer.advice
    console.print(headline(advice), style="bold")
    for line in _facts(answer):
        console.print(line)
    console.print("\nwhy", style="dim")
    for line in _reasons(answer):
        console.print(line)
    if len(advice.ranked) > 1:
        console.print()
        console.print(_table(answer, console.width))
        if len(advice.ranked) > MOST_SHOWN:
            console.print(f"and {len(advice.ranked) - MOST_SHOWN} more", style="dim")
    if told := next_runs_sentence(advice, bool(answer.command)):
        console.print(f"\n{told}")
    if answer.command:
        console.print(f"  {answer.command}", soft_wrap=True)


def _facts(answer: Answered) -> Iterator[str]:
    advice = answer.advice
    yield expectation_sentence(advice.choice.candidate, answer.metric, answer.target, answer.cold)
    for line in (limit_sentence(advice), probability_sentence(advice)):
        if line:
            yield line
    yield from runner_up_sentences(advice)


def _reasons(answer: Answered) -> Iterator[str]:
    yield from reasons(answer.advice, answer.metric, answer.target)
    if answer.other_clock:
        clock = "of the training alone" if answer.cold else "from cold (--cold)"
        yield f"By the time {clock} the choice would be {answer.other_clock}."
    if answer.unpriced and not answer.advice.unpriced:
        yield answer.unpriced
    if usual := usual_settings(
        [*(one.candidate.group for one in answer.advice.ranked), *answer.advice.candidate_set.never]
    ):
        yield usual


def _table(answer: Answered, width: int) -> Table:
    shown = answer.advice.ranked[:MOST_SHOWN]
    candidates = [one.candidate for one in shown]
    goal = f"to {target_text(answer.metric, answer.target)}"
    money = any(one.usd for one in candidates)
    limited = any(one.kept < 1 for one in shown) and bool(str(answer.advice.limits))
    columns = [
        Column("setting", [one.name for one in candidates], shrinks=True),
        Column("nodes", [f"{one.nodes or '-'}" for one in candidates], 40, right=True),
        Column(goal, [seconds(one.seconds.middle) for one in candidates], right=True),
        Column("from to", [span(one.seconds.low, one.seconds.high) for one in candidates], 60, right=True),
        *([Column("cost", [dollars(one.usd.middle if one.usd else None) for one in candidates], right=True)] * money),
        *([Column("keeps limits", [probability_text(one.kept) for one in shown], 50, right=True)] * limited),
        Column("best", [probability_text(_best(one)) for one in shown], ALWAYS, right=True),
        Column("runs", [str(one.evidence.runs) if one.measured else "-" for one in candidates], 30, right=True),
        Column("", [_mark(one) for one in shown], 70),
    ]
    return table(columns, width, [None] * len(shown), folds=True)


def _best(one: RankedCandidate) -> float:
    return one.standing.best if one.standing else 0.0


def _mark(one: RankedCandidate) -> str:
    if one.candidate.measured:
        return ""
    return "extrapolated" if one.candidate.extrapolated else "predicted"


def for_programs(answer: Answered) -> dict[str, Any]:
    """All of it as JSON has it; what is not known is null."""
    advice = answer.advice
    return {
        "workload": answer.workload,
        "metric": answer.metric,
        "target": answer.target,
        "clock": "cold" if answer.cold else "training",
        "goal": advice.objective,
        "max_seconds": advice.limits.max_seconds,
        "max_cost": advice.limits.max_cost,
        "verdict": advice.verdict,
        "indicative": advice.indicative,
        "choice": _weighed(advice.choice),
        "runner_up": _behind(advice),
        "ranked": [_weighed(one) for one in advice.ranked],
        "too_much": [_weighed(one) for one in advice.too_much],
        "never": [group.name for group in advice.candidate_set.never],
        "unpriced": [one.name for one in advice.unpriced],
        "other_clock": answer.other_clock,
        "next": next_runs_sentence(advice, bool(answer.command)),
        "command": answer.command,
        "sentences": _sentences(answer),
    }


def _sentences(answer: Answered) -> Sequence[str]:
    return [headline(answer.advice), *_facts(answer), *_reasons(answer)]


def _behind(advice: Advice) -> dict[str, Any] | None:
    if advice.runner_up is None:
        return None
    low, middle, high = advice.behind(advice.runner_up)
    return {**_weighed(advice.runner_up), "times_as_much": {"low": low, "middle": middle, "high": high}}


def _weighed(one: RankedCandidate) -> dict[str, Any]:
    standing = one.standing
    return {
        **one.candidate.to_json(),
        "keeps_limits": one.kept,
        "best": standing.best if standing else None,
        "near_best": standing.near_best if standing else None,
        "regret": standing.regret if standing else None,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_folder(parser)
    parser.add_argument(
        "--target", type=float, metavar="T", help="how good it must become; the headline target by default"
    )
    parser.add_argument(
        "--max-seconds", type=float, metavar="S", help="be there in time; by the cheapest way, with prices"
    )
    parser.add_argument("--max-cost", type=float, metavar="USD", help="be there for at most so many dollars")
    common.add_prices(parser)
    parser.add_argument("--cold", action="store_true", help="count start and end, too, and not the training alone")
    parser.add_argument("--workload", metavar="NAME", help="which, where there are records of several")
    parser.add_argument("--engine", metavar="E", help="only this engine")
    parser.add_argument("--nodes", type=int, metavar="N", help="so many nodes, run or not")
    parser.add_argument("--cores", type=float, metavar="C", help="nodes of so many cores")
    parser.add_argument("--machine", metavar="NAME", help="nodes of this type")
    parser.add_argument("--rows", type=float, metavar="R", help="so many rows to train on, run or not")


def execute(options: argparse.Namespace) -> int:
    from trainoff.analysis.advice import AdviceFilter, AdviceLimits
    from trainoff.cli.show import price_book

    wanted = AdviceFilter(options.engine, options.nodes, options.cores, options.machine, options.rows)
    limits = AdviceLimits(options.max_seconds, options.max_cost)
    asked = AdviseOptions(options.folder, options.target, limits, wanted, options.cold, options.workload)
    return advise(asked, price_book(options.prices, None), options.json, common.console())
