"""`trainoff advise`: what to use, what it takes, how sure that is, why, and which runs would tell more."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import newest, priced, unpriced
from trainoff.analysis.advice import (
    Advice,
    Candidate,
    Limits,
    Wish,
    considered,
    decide,
    known_target,
    known_wish,
    one_workload,
    why_nothing,
)
from trainoff.analysis.ranking import check_target
from trainoff.analysis.scaling import nodes_key
from trainoff.cli.next_runs import NODES, ROWS, said, study_copy
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.advised import for_programs, show
from trainoff.reproductions.published import records_of, some_of
from trainoff.study.prices import PriceBook

if TYPE_CHECKING:
    from rich.console import Console

MOST_NODES = 100_000


@dataclass(frozen=True)
class Question:
    """What is asked for, as it was typed."""

    folder: Path
    target: float | None = None
    limits: Limits = field(default_factory=Limits)
    wish: Wish = field(default_factory=Wish)
    cold: bool = False
    workload: str | None = None


@dataclass(frozen=True)
class Answer:
    """The advice, the records it is from, and what the other clock would say."""

    advice: Advice
    target: float
    metric: str
    workload: str
    cold: bool
    other_clock: str | None  # what would be chosen by the other clock, if that is something else
    command: str | None  # that would tell more
    unpriced: str | None = None  # why the book that was given says nothing of money


def advise(question: Question, book: PriceBook | None, as_json: bool, console: Console) -> int:
    """Answer with sentences and a table, or as JSON; 1 if a record is damaged."""
    _check(question)
    records, damaged = some_of(question.folder)
    kept = newest(records)
    answer = answer_to(question, priced(kept, book) if book else kept, book)
    if as_json:
        print(json.dumps(for_programs(answer), indent=1, allow_nan=False))
    else:
        show(answer, console)
    return warn(damaged)


def answer_to(question: Question, records: Sequence[Record], book: PriceBook | None = None) -> Answer:
    """The answer that records give; what they cannot say is one sentence."""
    own = one_workload(records, question.workload)
    lack = unpriced(own, book) if book else None
    if lack and question.limits.max_cost is not None and all(record.usd_per_hour is None for record in own):
        raise TrainoffError(f"--max-cost {question.limits.max_cost:g}: {lack.removesuffix('.')}")
    target = known_target(own, question.target)
    known_wish(own, question.wish)
    advice = _advice(question, own, target, question.cold)
    return Answer(
        advice, target, own[0].metric, own[0].workload, question.cold,
        _other_clock(question, own, target, advice), _command(question, own, advice), lack,
    )  # fmt: skip


def _check(question: Question) -> None:
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


def _advice(question: Question, own: Sequence[Record], target: float, cold: bool) -> Advice:
    found = considered(own, target, question.wish, cold)
    if not found.candidates:
        why = why_nothing(found, own, target, question.wish)
        raise TrainoffError(f"{question.folder}: {why}; {_remedy(question, own)}")
    return decide(found, question.limits)


def _other_clock(question: Question, own: Sequence[Record], target: float, advice: Advice) -> str | None:
    """What would be chosen by the other clock, where that is another setting; only without limits."""
    if question.limits != Limits() or len(advice.ranked) == 1:
        return None
    found = considered(own, target, question.wish, not question.cold)
    if not found.candidates:
        return None
    other = decide(found, Limits()).choice.candidate.name
    return None if other == advice.choice.candidate.name else other


def _remedy(question: Question, own: Sequence[Record]) -> str:
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


def _command(question: Question, own: Sequence[Record], advice: Advice) -> str | None:
    """The command of the runs that would tell more; several, where one cannot make them all."""
    more = advice.more
    if more is None or not more.worth_it:
        return None
    if more.why == "engines":
        first = more.candidates[0].record
        others = _untried(question.folder, first, advice.field.engines)
        return shlex.join([*said(question.folder, first.study, ()), *others]) if others else None
    several = len({record.workload for record in records_of(question.folder)[0]}) > 1
    engines: dict[tuple[str, ...], list[str]] = {}
    for one in more.candidates:
        words = _words(question.folder, one, own, more.why == "predicted")
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
