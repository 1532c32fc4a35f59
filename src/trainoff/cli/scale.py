"""`trainoff scale`: how time goes with the nodes, and what others would bring."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainoff.analysis import FIGURES, Figure, time_to
from trainoff.analysis.format import count, seconds, span, times
from trainoff.analysis.ranking import check_target, not_timed
from trainoff.analysis.scaling import (
    PER_1000,
    Config,
    Curve,
    Estimate,
    Fit,
    checked,
    curves,
    fit,
    graded,
    mixed,
    off,
    sense,
    shape,
    share,
)
from trainoff.cli import common
from trainoff.cli.next_runs import NextRuns, next_runs
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import Record
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.reproductions.published import published_name, some_of
from trainoff.study.suggestions import quote

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


KINDS = {"train_s": FIGURES["train_s"], "cold_s": FIGURES["cold_s"], PER_1000.name: PER_1000}
MOST_NODES = 100_000
MORE = "`trainoff run STUDY --set nodes=2` adds another (`workers=2` where it is not a lab)"


@dataclass(frozen=True)
class ScaleOptions:
    """What to model and where to predict it, as it was asked."""

    folder: Path
    at: Sequence[str] = ()
    hold_out: Sequence[str] = ()
    minutes: float | None = None
    figure: str = "train_s"
    target: float | None = None


def scale(question: ScaleOptions, as_json: bool, console: Console) -> int:
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


def _check(question: ScaleOptions) -> None:
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


def _figure(question: ScaleOptions, records: Sequence[Record]) -> Callable[[Record], Figure]:
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


def _next(question: ScaleOptions, answer: Scaled, at: Sequence[int]) -> NextRuns:
    assert question.minutes is not None
    return next_runs(answer, at, question.minutes, question.folder)


MOST_NAMED = 3  # of the curves that could not be fitted


@dataclass(frozen=True)
class Scaled:
    """The curves that could be fitted, those with one node count only, those with nothing, and where to predict."""

    fits: Sequence[tuple[Curve, Fit]]
    single: Sequence[Curve]
    nothing: Sequence[Curve]
    at: Sequence[int]


@dataclass(frozen=True)
class Row:
    """One line of a table: a prediction, and what was measured there if anything was."""

    estimate: Estimate
    config: Config | None
    held_out: bool
    error: float | None  # of this very configuration, where it was left out or held out

    @property
    def place(self) -> tuple[int, float]:
        """Its nodes and rows."""
        return self.estimate.nodes, self.estimate.rows

    @property
    def marks(self) -> str:
        said = ["extrapolated"] if self.estimate.extrapolated else []
        return ", ".join([*said, *(["held out"] if self.held_out else [])])

    @property
    def grade(self) -> str:
        """How far off this prediction was when it was made blindly; of one never measured, what others were."""
        if self.error is not None:
            return off(self.error)
        others = share(self.estimate.error)
        return f"about {others}" if others[0].isdigit() else others


def asked(counts: Sequence[int], at: Sequence[int]) -> list[int]:
    """The node counts to predict: those asked for, else twice the largest that was measured."""
    return list(at) or [2 * counts[-1]]


def rows_of_table(curve: Curve, model: Fit, at: Sequence[int]) -> list[Row]:
    """What was measured and what is asked for, by nodes and rows."""
    measured = {(one.nodes, one.rows): one for one in curve.configs}
    fitted = {(one.nodes, one.rows) for one in model.configs}
    sizes = sorted({one.rows for one in curve.configs})
    places = {*measured, *((nodes, rows) for nodes in asked(curve.counts, at) for rows in sizes)}
    made = []
    for place in sorted(places):
        inside = model.grade.left_out.get(place[0]) if place in fitted and len(sizes) == 1 else None
        error = model.grade.held_out.get(place, inside)
        made.append(Row(model.predict(*place), measured.get(place), place in model.grade.held_out, error))
    return made


def show(answer: Scaled, wanted: NextRuns | None, console: Console) -> None:
    """Print a table and sentences for every curve, what could not be fitted, and what to run next."""
    workloads = {curve.workload for curve, _ in answer.fits}
    for place, (curve, model) in enumerate(answer.fits):
        where = f" on {curve.workload}" if len(workloads) > 1 else ""
        console.print(f"{chr(10) if place else ''}{curve.name}{where}: {curve.figure.words}", style="bold")
        console.print(f"= {mixed(model)}{_of_rows(model)}")
        console.print(_table(rows_of_table(curve, model, answer.at), model, console.width))
        for line in _sentences(curve, model, answer.at):
            console.print(line)
    for line in remarks(answer):
        console.print(line, style="dim")
    if wanted is not None:
        for place, line in enumerate(wanted.lines()):
            console.print(line if place else f"\n{line}", soft_wrap=True)


def _sentences(curve: Curve, model: Fit, at: Sequence[int]) -> list[str]:
    """What the model means, how it was checked, and what is to be kept in mind."""
    doubt = shape(model, max(asked(curve.counts, at)))
    return [sense(model), checked(model), *([doubt] if doubt else []), *model.remarks, *_left_out(curve)]


def _of_rows(model: Fit) -> str:
    several = len({config.rows for config in model.configs}) > 1
    return f" ({model.mix.rows:,.0f} rows)" if several else ""


def _table(rows: Sequence[Row], model: Fit, width: int) -> Table:
    several = len({row.estimate.rows for row in rows}) > 1

    columns = [
        Column("nodes", [f"{row.estimate.nodes:,}" for row in rows], right=True),
        *([Column("rows", [f"{row.estimate.rows:,.0f}" for row in rows], right=True)] if several else []),
        Column("measured", [seconds(row.config.seconds if row.config else None) for row in rows], right=True),
        Column("runs", [str(len(row.config.runs)) if row.config else "-" for row in rows], 50, right=True),
        Column("predicted", [seconds(row.estimate.middle) for row in rows], right=True),
        Column("from to", [span(row.estimate.low, row.estimate.high) for row in rows], ALWAYS, right=True),
        Column("times faster", [times(model.speed_up(*row.place)) for row in rows], 60, right=True),
        Column("off by", [row.grade for row in rows], ALWAYS, right=True),
        Column("", [row.marks for row in rows], ALWAYS),
    ]
    return table(columns, width, [None] * len(rows))


def _left_out(curve: Curve) -> list[str]:
    bad = len(curve.censored)
    if not bad:
        return []
    return [f"{count(bad, 'run')} that did not come to this figure {'is' if bad == 1 else 'are'} left out."]


def remarks(answer: Scaled) -> list[str]:
    """What could not be fitted, and why."""
    said = []
    if answer.single:
        said.append(f"One number of nodes only, so no curve: {_names(answer.single)}.")
    if answer.nothing:
        said.append(f"No run came to this figure: {_names(answer.nothing)}.")
    return said


def _names(curves: Sequence[Curve]) -> str:
    """Their names; of many a few, and how many more there are."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def for_programs(answer: Scaled, wanted: NextRuns | None) -> dict[str, Any]:
    """All of it as JSON has it; what is not known is null."""
    made = {"curves": [_curve(curve, model, answer.at) for curve, model in answer.fits], "remarks": remarks(answer)}
    return made if wanted is None else {**made, "next": wanted.to_json()}


def _curve(curve: Curve, model: Fit, at: Sequence[int]) -> dict[str, Any]:
    grade = model.grade
    return {
        "engine": curve.engine,
        "workload": curve.workload,
        "setting": curve.setting or None,
        "figure": curve.figure.name,
        "target": curve.figure.target,
        "terms": model.terms,
        "rows": model.mix.rows,
        "fitted_on": model.counts,
        "best_nodes": model.best(),
        "enough_nodes": model.enough(),
        "left_out_errors": {str(nodes): error for nodes, error in grade.left_out.items()},
        "held_out_errors": [{"nodes": n, "rows": rows, "error": e} for (n, rows), e in grade.held_out.items()],
        "predictions": [_row(row, model) for row in rows_of_table(curve, model, at)],
        "sentences": [mixed(model), *_sentences(curve, model, at)],
    }


def _row(row: Row, model: Fit) -> dict[str, Any]:
    one = row.estimate
    return {
        "nodes": one.nodes,
        "rows": one.rows,
        "low": one.low,
        "middle": one.middle,
        "high": one.high,
        "extrapolated": one.extrapolated,
        "held_out": row.held_out,
        "expected_error": one.error,
        "error": row.error,
        "speed_up": model.speed_up(one.nodes, one.rows),
        "efficiency": model.efficiency(one.nodes, one.rows),
        "measured": row.config.seconds if row.config else None,
        "runs": len(row.config.runs) if row.config else 0,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_folder(parser)
    parser.add_argument(
        "--at", nargs="+", default=[], metavar="N", help="predict so many nodes (twice the most measured)"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="also say which runs of so many minutes would help most"
    )
    parser.add_argument(
        "--hold-out", nargs="+", default=[], metavar="N", help="keep these from the model and grade it so"
    )
    parser.add_argument("--figure", default="train_s", choices=("train_s", "cold_s", "per_1000_samples"),
                     help="the time to model (train_s)")  # fmt: skip
    parser.add_argument("--target", type=float, metavar="T", help="model the time to this target instead")


def execute(options: argparse.Namespace) -> int:
    asked = options.at, options.hold_out, options.minutes, options.figure, options.target
    return scale(ScaleOptions(options.folder, *asked), options.json, common.console())
