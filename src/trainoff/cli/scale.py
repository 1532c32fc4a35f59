"""`trainoff scale`: how the time of each engine goes with its nodes, what it would be elsewhere, what to run next."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff.analysis import FIGURES, Figure, time_to
from trainoff.analysis.format import count
from trainoff.analysis.ranking import check_target, not_timed
from trainoff.analysis.scaling import PER_1000, Curve, Fit, curves, fit, graded
from trainoff.cli.next_runs import NextRuns, next_runs
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.scaled import Scaled, for_programs, show
from trainoff.reproductions.published import published_name, some_of
from trainoff.study.suggestions import quote

if TYPE_CHECKING:
    from rich.console import Console

KINDS = {"train_s": FIGURES["train_s"], "cold_s": FIGURES["cold_s"], PER_1000.name: PER_1000}
MOST_NODES = 100_000
MORE = "`trainoff run STUDY --set nodes=2` adds another (`workers=2` where it is not a lab)"


@dataclass(frozen=True)
class Question:
    """What to model and where to predict it, as it was asked."""

    folder: Path
    at: Sequence[str] = ()
    hold_out: Sequence[str] = ()
    minutes: float | None = None
    figure: str = "train_s"
    target: float | None = None


def scale(question: Question, as_json: bool, console: Console) -> int:
    """Answer as tables with sentences, or as JSON; 1 if a record is damaged."""
    at, held = _counts("--at", question.at), _counts("--hold-out", question.hold_out)
    _check(question)
    records, damaged = some_of(question.folder)
    found = curves(records, _figure(question, records))
    _check_held(held, found)
    answer = _answer(found, at, held)
    if not answer.fits and not (question.minutes and any(curve.spreads for curve in answer.single)):
        raise TrainoffError(f"{question.folder}: {_why_not(records, found, held)}")
    wanted = None if question.minutes is None else _next(question, answer, at)
    if as_json:
        print(json.dumps(for_programs(answer, wanted), indent=1, allow_nan=False))
    else:
        show(answer, wanted, console)
    return warn(damaged)


def _counts(option: str, words: Sequence[str]) -> list[int]:
    """Numbers of nodes, in order."""
    for word in words:
        if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST_NODES):
            wanted = f"give whole numbers from 1 to {MOST_NODES:,}, as in {option} 17"
            raise TrainoffError(f"{option}: {quote(word)} is not a number of nodes; {wanted}")
    return sorted({int(word) for word in words})


def _check(question: Question) -> None:
    if question.minutes is not None and not (question.minutes > 0 and math.isfinite(question.minutes)):
        raise TrainoffError(f"--minutes {question.minutes:g} is no time to run anything in; try --minutes 20")
    if question.minutes is not None and (name := published_name(question.folder)):
        raise TrainoffError(
            f"--minutes: nothing that runs here adds to published figures; `trainoff reproduce {name}` asks anew"
        )
    check_target(question.target)
    if question.target is not None and question.figure != "train_s":
        raise TrainoffError("--target asks for the time to it, and --figure for something else; give one of them")


def _check_held(held: Sequence[int], found: Sequence[Curve]) -> None:
    """Refuse to hold out what nobody measured: the model would not be graded by it, and nothing would say so."""
    measured = sorted({nodes for curve in found for nodes in curve.counts})
    missing = [nodes for nodes in held if nodes not in measured]
    if missing and measured:
        told = ", ".join(f"{nodes:,}" for nodes in measured)
        raise TrainoffError(f"--hold-out {missing[0]}: no run has {count(missing[0], 'node')}; they have {told}")


def _figure(question: Question, records: Sequence[Record]) -> Callable[[Record], Figure]:
    """The figure to model; that of a target depends on a workload's metric."""
    target = question.target
    if target is None:
        return lambda record: KINDS[question.figure]
    if not any(str(target) in record.time_to_target for record in records):
        raise not_timed(records, target)
    return lambda record: time_to(target, record.metric)


def _answer(found: Sequence[Curve], at: Sequence[int], held: Sequence[int]) -> Scaled:
    """A model of every curve that has two node counts or more, and what is said of the others."""
    fits: list[tuple[Curve, Fit]] = []
    single = []
    for curve in found:
        kept, unseen = curve.split(held)
        if len({config.nodes for config in kept}) > 1:
            fits.append((curve, graded(fit(kept), unseen)))
        elif curve.records:
            single.append(curve)
    return Scaled(fits, single, [curve for curve in found if not curve.records], at)


def _why_not(records: Sequence[Record], found: Sequence[Curve], held: Sequence[int]) -> str:
    """Why there is no curve, and what to do."""
    if len(records) == 1:
        return f"one record is a point and not a curve; {MORE}"
    measured = {nodes for curve in found for nodes in curve.counts}
    if not any(record.workers for record in records):
        return "nobody wrote down how many nodes these runs had; choose records that say it"
    if not measured:
        ends = Counter(record.status if record.status != "ok" else "never got there" for record in records)
        told = ", ".join(f"{number} {status}" for status, number in ends.items())
        return f"no run here has that figure ({told}), so there is nothing to fit; `trainoff show` says why"
    if held and len(measured) > 1:
        return "what --hold-out leaves has one number of nodes; hold out fewer"
    if len(measured) > 1:
        return "no engine was run with two numbers of nodes and all else alike; sweep `nodes` alone"
    return f"all runs have {count(measured.pop(), 'node')}, and a curve needs two numbers of them; {MORE}"


def _next(question: Question, answer: Scaled, at: Sequence[int]) -> NextRuns:
    assert question.minutes is not None
    return next_runs(answer, at, question.minutes, question.folder)
