"""`trainoff advise`: recommend a setting for a target, with its probability and the reasons."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trainoff.analysis import newest, priced, unpriced, usual_settings
from trainoff.analysis.advice.candidates import AdviceFilter, Candidate, find_candidates
from trainoff.analysis.advice.decide import (
    Advice,
    AdviceLimits,
    RankedCandidate,
    advice_sentence,
    check_filter,
    choose_target,
    decide,
    expectation_sentence,
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
from trainoff.analysis.scaling.curves import nodes_key
from trainoff.cli import common
from trainoff.cli.scale import MOST_NODES, NODES, ROWS, rerun_command, study_copy
from trainoff.cli.show import price_book, warn
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.tables import Column, table
from trainoff.reproductions.published import read_records, require_records
from trainoff.study.machines import PriceBook

MOST_SHOWN = 8


@dataclass(frozen=True)
class AdviseOptions:
    """The options of `trainoff advise`."""

    folder: Path
    target: float | None
    limits: AdviceLimits
    filter: AdviceFilter
    cold: bool
    workload: str | None


@dataclass(frozen=True)
class AdviceResult:
    """The advice, its target, and the runs that would make it more certain."""

    advice: Advice
    target: float
    metric: str
    workload: str
    cold: bool
    other_clock: str | None  # the choice by the other clock, if it is another
    command: str | None  # runs that would make the advice more certain
    unpriced: str | None = None  # why the given price book has no prices for these records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_folder(parser)
    add = parser.add_argument
    add("--target", type=float, metavar="T", help="value of the metric to reach (the headline target)")
    add("--max-seconds", type=float, metavar="S", help="reach it within S seconds; with prices, as cheaply as possible")
    add("--max-cost", type=float, metavar="USD", help="reach it for at most this many dollars")
    common.add_prices(parser)
    add("--cold", action="store_true", help="count start and end, and not only the training")
    add("--workload", metavar="NAME", help="workload, if there are records of several")
    add("--engine", metavar="E", help="only this engine")
    add("--nodes", type=int, metavar="N", help="only N nodes, measured or predicted")
    add("--cores", type=float, metavar="C", help="only nodes of C cores")
    add("--machine", metavar="NAME", help="only nodes of this machine type")
    add("--rows", type=float, metavar="R", help="only R rows to train on, measured or predicted")


def execute(given: argparse.Namespace) -> int:
    """Print the advice as sentences and a table or as JSON; exit code 1 if a record is damaged."""
    wanted = AdviceFilter(given.engine, given.nodes, given.cores, given.machine, given.rows)
    limits = AdviceLimits(given.max_seconds, given.max_cost)
    options = AdviseOptions(given.folder, given.target, limits, wanted, given.cold, given.workload)
    book = price_book(given.prices, None)
    _check_options(options)
    records, damaged = require_records(options.folder)
    found = newest(records)
    result = _advise(options, priced(found, book) if book else found, book)
    if given.json:
        print(json.dumps(_to_json(result), indent=1, allow_nan=False))
    else:
        _print_result(result, common.console())
    return warn(damaged)


def _check_options(options: AdviseOptions) -> None:
    wanted, limits = options.filter, options.limits
    values = {"--max-seconds": limits.max_seconds, "--max-cost": limits.max_cost, "--cores": wanted.cores}
    for option, value in {**values, "--rows": wanted.rows}.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise TrainoffError(f"{option} {value:g}: give a number above 0")
    if wanted.nodes is not None and not 1 <= wanted.nodes <= MOST_NODES:
        raise TrainoffError(f"--nodes {wanted.nodes}: give a whole number from 1 to {MOST_NODES:,}")
    if wanted.machine is not None and wanted.cores is not None:
        raise TrainoffError("--machine and --cores both give the size of a node; give one of them")
    check_target(options.target)


def _advise(options: AdviseOptions, every: Sequence[Record], book: PriceBook | None) -> AdviceResult:
    """Return the advice of the records; raise an error if they have none."""
    records = select_workload(every, options.workload)
    no_price = unpriced(records, book) if book else None
    if no_price and options.limits.max_cost is not None and all(record.usd_per_hour is None for record in records):
        raise TrainoffError(f"--max-cost {options.limits.max_cost:g}: {no_price.removesuffix('.')}")
    target = choose_target(records, options.target)
    check_filter(records, options.filter)
    found = find_candidates(records, target, options.filter, options.cold)
    if not found.candidates:
        reason = no_candidate_reason(found, records, target)
        raise TrainoffError(f"{options.folder}: {reason}; {_remedy(options, records)}")
    advice = decide(found, options.limits)
    other_clock, command = _other_clock(options, records, target, advice), _command(options, records, advice)
    first = records[0]
    return AdviceResult(advice, target, first.metric, first.workload, options.cold, other_clock, command, no_price)


def _other_clock(options: AdviseOptions, records: Sequence[Record], target: float, advice: Advice) -> str | None:
    """Return the choice by the other clock if it is another; only without limits."""
    if options.limits != AdviceLimits() or len(advice.ranked) == 1:
        return None
    found = find_candidates(records, target, options.filter, not options.cold)
    if not found.candidates:
        return None
    other = decide(found, AdviceLimits()).choice.candidate.name
    return None if other == advice.choice.candidate.name else other


def _remedy(options: AdviseOptions, records: Sequence[Record]) -> str:
    """Say which runs, or which other engine, would make advice possible."""
    wanted = options.filter
    kept = [record for record in records if wanted.holds(record)]
    if (wanted.nodes or 1) > 1 and all(record.mode == "single" for record in kept):
        return "`trainoff engines` lists those that can"
    overrides = _sizes(kept[0], wanted.nodes, wanted.rows)
    if not overrides and any(one.status == "ok" for one in kept):
        steps = "max_iter" if all("max_iter" in record.params for record in kept) else "epochs"
        overrides = {steps: f"{2 * max(record.params.get(steps) or 1 for record in kept):g}"}
    argv = _with_overrides(rerun_command(options.folder, kept[0].study, ()), overrides)
    argv += ["--engine", wanted.engine] if wanted.engine else []
    argv += [] if overrides else ["--retry", "failed"]
    return f"run this: {shlex.join(argv)}"


def _sizes(record: Record, nodes: int | None, rows: float | None) -> dict[str, str]:
    """Return numbers of nodes and rows as overrides of a study."""
    overrides = {} if nodes is None else {nodes_key(record): str(nodes)}
    return overrides if rows is None else {**overrides, ROWS: f"{rows:.0f}"}


def _with_overrides(argv: Sequence[str], overrides: Mapping[str, str]) -> list[str]:
    """Return a command with overrides, each in the place of an earlier one of its key, else at the end."""
    changed, left = list(argv), dict(overrides)
    for index, (option, value) in enumerate(pairwise(argv), 1):
        key = value.partition("=")[0].strip()
        if option == "--set" and (same := next((one for one in left if key == one or {key, one} == {*NODES}), None)):
            changed[index] = f"{same}={left.pop(same)}"
    return [*changed, *(part for key, value in left.items() for part in ("--set", f"{key}={value}"))]


def _command(options: AdviseOptions, records: Sequence[Record], advice: Advice) -> str | None:
    """Return the commands of the runs that would make the advice more certain."""
    more = advice.more
    if more is None or not more.practical:
        return None
    if more.reason == "engines":
        first = more.candidates[0].record
        others = _untried(options.folder, first, advice.candidate_set.engines)
        return shlex.join([*rerun_command(options.folder, first.study, ()), *others]) if others else None
    several = len({record.workload for record in read_records(options.folder)[0]}) > 1
    engines: dict[tuple[str, ...], list[str]] = {}
    for one in more.candidates:
        argv = _candidate_command(options.folder, one, records, more.reason == "predicted")
        argv += ["--set", f"workload={one.record.workload}"] if several else []
        engines.setdefault(tuple(argv), []).append(one.record.engine)
    repeat = ["--repeat", str(more.repeat)] if more.repeat > 1 else []
    return " && ".join(
        shlex.join([*argv, *_engine_options(dict.fromkeys(names)), *repeat]) for argv, names in engines.items()
    )


def _candidate_command(folder: Path, one: Candidate, records: Sequence[Record], predicted: bool) -> list[str]:
    """Return the command of a candidate's study, with its nodes and rows where the study has others."""
    argv, record = rerun_command(folder, one.record.study, ()), one.record
    known = {value.partition("=")[0].strip() for option, value in pairwise(argv) if option == "--set"}
    spread = record.mode != "single" and (predicted or bool(known & {*NODES}))
    several = len({each.params.get(ROWS) for each in records}) > 1
    rows = one.rows > 1 and ((predicted and several) or ROWS in known)
    return _with_overrides(argv, _sizes(record, one.nodes if spread else None, one.rows if rows else None))


def _untried(folder: Path, record: Record, tried: Collection[str]) -> list[str]:
    """Return options for the engines of the study that have no record yet."""
    copy = study_copy(folder, record.study)
    try:
        listed = tomllib.loads(copy.read_text(errors="replace")).get("engines", []) if copy else []
    except tomllib.TOMLDecodeError:  # the copy was edited
        listed = []
    return _engine_options(str(name) for name in listed if name not in tried) if isinstance(listed, list) else []


def _engine_options(names: Iterable[str]) -> list[str]:
    return [part for name in names for part in ("--engine", name)]


def _print_result(result: AdviceResult, console: Console) -> None:
    """Print the choice with its probability, the reasons, the other candidates, and the next runs."""
    advice = result.advice
    console.print(advice_sentence(advice), style="bold")
    for sentence in _facts(result):
        console.print(sentence)
    console.print("\nwhy", style="dim")
    for sentence in _reasons(result):
        console.print(sentence)
    if len(advice.ranked) > 1:
        console.print()
        console.print(_table(result, console.width))
        if len(advice.ranked) > MOST_SHOWN:
            console.print(f"and {len(advice.ranked) - MOST_SHOWN} more", style="dim")
    if next_runs := next_runs_sentence(advice, bool(result.command)):
        console.print(f"\n{next_runs}")
    if result.command:
        console.print(f"  {result.command}", soft_wrap=True)


def _facts(result: AdviceResult) -> Iterator[str]:
    advice = result.advice
    yield expectation_sentence(advice.choice.candidate, result.metric, result.target, result.cold)
    yield from filter(None, (limit_sentence(advice), probability_sentence(advice)))
    yield from runner_up_sentences(advice)


def _reasons(result: AdviceResult) -> Iterator[str]:
    advice = result.advice
    yield from reasons(advice, result.metric, result.target)
    if result.other_clock:
        clock = "of the training alone" if result.cold else "from cold (--cold)"
        yield f"By the time {clock} the choice would be {result.other_clock}."
    if result.unpriced and not advice.unpriced:
        yield result.unpriced
    if usual := usual_settings([*(one.candidate.group for one in advice.ranked), *advice.candidate_set.never]):
        yield usual


def _table(result: AdviceResult, width: int) -> Table:
    shown = result.advice.ranked[:MOST_SHOWN]
    candidates = [one.candidate for one in shown]
    heading = f"to {target_text(result.metric, result.target)}"
    money = any(one.usd for one in candidates)
    origins = ["" if one.measured else "extrapolated" if one.extrapolated else "predicted" for one in candidates]
    limited = any(one.kept < 1 for one in shown) and bool(str(result.advice.limits))
    columns = [
        Column("setting", [one.name for one in candidates], shrinks=True),
        Column("nodes", [f"{one.nodes or '-'}" for one in candidates], 40, right=True),
        Column(heading, [seconds(one.seconds.middle) for one in candidates], right=True),
        Column("from to", [span(one.seconds.low, one.seconds.high) for one in candidates], 60, right=True),
        *([Column("cost", [dollars(one.usd.middle if one.usd else None) for one in candidates], right=True)] * money),
        *([Column("keeps limits", [probability_text(one.kept) for one in shown], 50, right=True)] * limited),
        Column("best", [probability_text(one.standing.best if one.standing else 0) for one in shown], right=True),
        Column("runs", [str(one.evidence.runs) if one.measured else "-" for one in candidates], 30, right=True),
        Column("", origins, 70),
    ]
    return table(columns, width, folds=True)


def _to_json(result: AdviceResult) -> dict[str, Any]:
    advice, runner_up = result.advice, None
    if advice.runner_up:
        times = dict(zip(("low", "middle", "high"), advice.behind(advice.runner_up), strict=True))
        runner_up = {**_candidate_to_json(advice.runner_up), "times_as_much": times}
    return {
        "workload": result.workload,
        "metric": result.metric,
        "target": result.target,
        "clock": "cold" if result.cold else "training",
        "goal": advice.objective,
        "max_seconds": advice.limits.max_seconds,
        "max_cost": advice.limits.max_cost,
        "verdict": advice.verdict,
        "indicative": advice.indicative,
        "choice": _candidate_to_json(advice.choice),
        "runner_up": runner_up,
        "ranked": [_candidate_to_json(one) for one in advice.ranked],
        "too_much": [_candidate_to_json(one) for one in advice.too_much],
        "never": [group.name for group in advice.candidate_set.never],
        "unpriced": [one.name for one in advice.unpriced],
        "other_clock": result.other_clock,
        "next": next_runs_sentence(advice, bool(result.command)),
        "command": result.command,
        "sentences": [advice_sentence(advice), *_facts(result), *_reasons(result)],
    }


def _candidate_to_json(one: RankedCandidate) -> dict[str, Any]:
    standing = one.standing
    return {
        **one.candidate.to_json(),
        "keeps_limits": one.kept,
        "best": standing.best if standing else None,
        "near_best": standing.near_best if standing else None,
        "regret": standing.regret if standing else None,
    }
