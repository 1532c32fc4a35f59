"""`trainoff scale`: model the time by the number of nodes, and predict other numbers of nodes."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trainoff.analysis.figures import FIGURES, Figure, time_to
from trainoff.analysis.format import about, count, ratio_text, seconds, some_names, span
from trainoff.analysis.ranking import check_target, not_timed
from trainoff.analysis.scaling.curves import PER_1000, Curve, curves
from trainoff.analysis.scaling.designer import DesignedRun, RunCandidate, Subject, design, grid
from trainoff.analysis.scaling.model import Estimate, Fit, Formula, Measurement, fit, graded
from trainoff.analysis.scaling.text import (
    error_text,
    formula_text,
    grade_text,
    interpretation,
    shape_caution,
    share_text,
)
from trainoff.cli import common
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.records import STUDY_COPY, Record
from trainoff.report.tables import ALWAYS, Column, table
from trainoff.reproductions.published import published_name, require_records
from trainoff.study.suggestions import quote

FIGURES_BY_NAME = {"train_s": FIGURES["train_s"], "cold_s": FIGURES["cold_s"], PER_1000.name: PER_1000}
MOST_NODES = 100_000
NODES = ("nodes", "workers")  # the keys for the number of nodes
ROWS = "train_rows"
REPLACED_OPTIONS = ("--engine", "--repeat", "--retry")  # options with a value that a rerun gives anew
ADD_COUNT = "`trainoff run STUDY --set nodes=2` adds another (`workers=2` if it is not a lab)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    common.add_folder(parser)
    add = parser.add_argument
    add("--at", nargs="+", default=[], metavar="N", help="numbers of nodes to predict (twice the largest measured)")
    add("--minutes", type=float, metavar="M", help="also suggest the runs within M minutes that would help most")
    about_hold_out = "fit without these numbers of nodes, and grade by them"
    add("--hold-out", nargs="+", default=[], metavar="N", help=about_hold_out)
    add("--figure", default="train_s", choices=tuple(FIGURES_BY_NAME), help="time to model (train_s)")
    add("--target", type=float, metavar="T", help="model the time to this target instead")


def execute(options: argparse.Namespace) -> int:
    """Print the models as tables with sentences or as JSON; exit code 1 if a record is damaged."""
    at, held_out = _node_counts("--at", options.at), _node_counts("--hold-out", options.hold_out)
    _check_options(options.folder, options.minutes, options.target, options.figure)
    records, damaged = require_records(options.folder)
    found = curves(records, _figure(options.figure, options.target, records))
    _check_held_out(held_out, found)
    result = _fit_all(found, at, held_out)
    if not result.fits and not (options.minutes and any(curve.spreads for curve in result.single)):
        raise TrainoffError(f"{options.folder}: {_no_curve_reason(records, found, held_out)}")
    plan = None if options.minutes is None else next_runs(result, options.minutes, options.folder)
    if options.json:
        print(json.dumps(_to_json(result, plan), indent=1, allow_nan=False))
    else:
        _print_result(result, plan, common.console())
    return warn(damaged)


@dataclass(frozen=True)
class ScaleResult:
    """The models of all curves, the curves that could not be fitted, and the node counts to predict."""

    fits: Sequence[tuple[Curve, Fit]]
    single: Sequence[Curve]  # with one node count
    empty: Sequence[Curve]  # without any time
    at: Sequence[int]


@dataclass(frozen=True)
class Row:
    """A row of the table: a prediction, and what was measured there."""

    estimate: Estimate
    measurement: Measurement | None
    held_out: bool
    error: float | None  # of this prediction, where it could be checked

    @property
    def position(self) -> tuple[int, float]:
        """Its nodes and rows."""
        return self.estimate.nodes, self.estimate.rows

    @property
    def remarks(self) -> str:
        return ", ".join(["extrapolated"] * self.estimate.extrapolated + ["held out"] * self.held_out)

    @property
    def grade(self) -> str:
        """The error of this prediction; without a measurement, that of comparable ones."""
        if self.error is not None:
            return error_text(self.error)
        others = share_text(self.estimate.error)
        return f"about {others}" if others[0].isdigit() else others


def _node_counts(option: str, texts: Sequence[str]) -> list[int]:
    """Return numbers of nodes in order."""
    for text in texts:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_NODES):
            hint = f"give whole numbers from 1 to {MOST_NODES:,}, as in {option} 17"
            raise TrainoffError(f"{option}: {quote(text)} is not a number of nodes; {hint}")
    return sorted({int(text) for text in texts})


def _check_options(folder: Path, minutes: float | None, target: float | None, figure: str) -> None:
    if minutes is not None and not (minutes > 0 and math.isfinite(minutes)):
        raise TrainoffError(f"--minutes {minutes:g}: expected a number of minutes above 0, as in --minutes 20")
    if minutes is not None and (name := published_name(folder)):
        raise TrainoffError(
            f"--minutes: runs here cannot extend published figures; `trainoff reproduce {name}` runs the study again"
        )
    check_target(target)
    if target is not None and figure != "train_s":
        raise TrainoffError("--target asks for the time to it, and --figure for something else; give one of them")


def _check_held_out(held_out: Sequence[int], found: Sequence[Curve]) -> None:
    """Raise an error if no run has a node count to hold out, because nothing would be graded by it."""
    measured = sorted({nodes for curve in found for nodes in curve.counts})
    missing = [nodes for nodes in held_out if nodes not in measured]
    if missing and measured:
        known = ", ".join(f"{nodes:,}" for nodes in measured)
        raise TrainoffError(f"--hold-out {missing[0]}: no run has {count(missing[0], 'node')}; they have {known}")


def _figure(name: str, target: float | None, records: Sequence[Record]) -> Callable[[Record], Figure]:
    """Return the figure to model for a record; that of a target depends on the workload's metric."""
    if target is None:
        return lambda record: FIGURES_BY_NAME[name]
    if not any(str(target) in record.time_to_target for record in records):
        raise not_timed(records, target)
    return lambda record: time_to(target, record.metric)


def _fit_all(found: Sequence[Curve], at: Sequence[int], held_out: Sequence[int]) -> ScaleResult:
    """Fit a model to every curve that has at least two node counts."""
    fits: list[tuple[Curve, Fit]] = []
    single = []
    for curve in found:
        kept, unseen = curve.split(held_out)
        if len({one.nodes for one in kept}) > 1:
            fits.append((curve, graded(fit(kept), unseen)))
        elif curve.records:
            single.append(curve)
    return ScaleResult(fits, single, [curve for curve in found if not curve.records], at)


def _no_curve_reason(records: Sequence[Record], found: Sequence[Curve], held_out: Sequence[int]) -> str:
    """Say why there is no curve, and what to do."""
    if len(records) == 1:
        return f"one record is a point and not a curve; {ADD_COUNT}"
    measured = {nodes for curve in found for nodes in curve.counts}
    if not any(record.workers for record in records):
        return "these records do not have their numbers of nodes; choose records that do"
    if not measured:
        ends = Counter(record.status if record.status != "ok" else "missed the target" for record in records)
        statuses = ", ".join(f"{number} {status}" for status, number in ends.items())
        return f"no run here has that figure ({statuses}), so there is nothing to fit; `trainoff show` says why"
    if held_out and len(measured) > 1:
        return "what --hold-out leaves has one number of nodes; hold out fewer"
    if len(measured) > 1:
        return "no engine was run with two numbers of nodes and all else alike; sweep `nodes` alone"
    return f"all runs have {count(measured.pop(), 'node')}, and a curve needs two numbers of them; {ADD_COUNT}"


def _predicted_counts(counts: Sequence[int], at: Sequence[int]) -> list[int]:
    """Return the node counts to predict, by default twice the largest that was measured."""
    return list(at) or [2 * counts[-1]]


def _rows(curve: Curve, model: Fit, at: Sequence[int]) -> list[Row]:
    """Return what was measured and what is to be predicted, by nodes and rows."""
    measured = {(one.nodes, one.rows): one for one in curve.measurements}
    fitted = {(one.nodes, one.rows) for one in model.measurements}
    sizes = sorted({one.rows for one in curve.measurements})
    positions = {*measured, *((nodes, rows) for nodes in _predicted_counts(curve.counts, at) for rows in sizes)}
    held_out = model.grade.held_out
    rows = []
    for position in sorted(positions):
        inside = model.grade.left_out.get(position[0]) if position in fitted and len(sizes) == 1 else None
        error = held_out.get(position, inside)
        rows.append(Row(model.predict(*position), measured.get(position), position in held_out, error))
    return rows


def _print_result(result: ScaleResult, plan: NextRuns | None, console: Console) -> None:
    """Print a table and sentences for every curve, what could not be fitted, and what to run next."""
    workloads = {curve.workload for curve, _ in result.fits}
    for index, (curve, model) in enumerate(result.fits):
        workload = f" on {curve.workload}" if len(workloads) > 1 else ""
        console.print(f"{chr(10) if index else ''}{curve.name}{workload}: {curve.figure.label}", style="bold")
        several = len({one.rows for one in model.measurements}) > 1
        console.print(f"= {formula_text(model)}" + (f" ({model.formula.rows:,.0f} rows)" if several else ""))
        console.print(_table(_rows(curve, model, result.at), model, console.width))
        for sentence in _sentences(curve, model, result.at):
            console.print(sentence)
    for remark in _remarks(result):
        console.print(remark, style="dim")
    if plan is not None:
        for index, line in enumerate(plan.lines()):
            console.print(line if index else f"\n{line}", soft_wrap=True)


def _sentences(curve: Curve, model: Fit, at: Sequence[int]) -> list[str]:
    """Say what the model means, how it was checked, and what limits it."""
    caution = shape_caution(model, max(_predicted_counts(curve.counts, at)))
    sentences = [interpretation(model), grade_text(model), *([caution] if caution else []), *model.remarks]
    if censored := len(curve.censored):
        sentences.append(f"{count(censored, 'run')} without this figure {'is' if censored == 1 else 'are'} left out.")
    return sentences


def _table(rows: Sequence[Row], model: Fit, width: int) -> Table:
    several = len({row.estimate.rows for row in rows}) > 1
    columns = [
        Column("nodes", [f"{row.estimate.nodes:,}" for row in rows], right=True),
        *([Column("rows", [f"{row.estimate.rows:,.0f}" for row in rows], right=True)] if several else []),
        Column("measured", [seconds(row.measurement.seconds if row.measurement else None) for row in rows], right=True),
        Column("runs", [str(len(row.measurement.runs)) if row.measurement else "-" for row in rows], 50, right=True),
        Column("predicted", [seconds(row.estimate.middle) for row in rows], right=True),
        Column("from to", [span(row.estimate.low, row.estimate.high) for row in rows], ALWAYS, right=True),
        Column("times faster", [ratio_text(model.speed_up(*row.position)) for row in rows], 60, right=True),
        Column("off by", [row.grade for row in rows], ALWAYS, right=True),
        Column("", [row.remarks for row in rows], ALWAYS),
    ]
    return table(columns, width)


def _remarks(result: ScaleResult) -> list[str]:
    """Name the curves that could not be fitted, and why."""
    why = {"One number of nodes only, so no curve": result.single, "No run has this figure": result.empty}
    remarks = []
    for reason, left_out in why.items():
        remarks += [f"{reason}: {some_names(curve.name for curve in left_out)}."] if left_out else []
    return remarks


def _to_json(result: ScaleResult, plan: NextRuns | None) -> dict[str, Any]:
    found = [_curve_to_json(curve, model, result.at) for curve, model in result.fits]
    return {"curves": found, "remarks": _remarks(result), **({"next": plan.to_json()} if plan else {})}


def _curve_to_json(curve: Curve, model: Fit, at: Sequence[int]) -> dict[str, Any]:
    grade = model.grade
    return {
        "engine": curve.engine,
        "workload": curve.workload,
        "setting": curve.setting or None,
        "figure": curve.figure.name,
        "target": curve.figure.target,
        "terms": model.terms,
        "rows": model.formula.rows,
        "fitted_on": model.counts,
        "best_nodes": model.best_nodes(),
        "enough_nodes": model.enough_nodes(),
        "left_out_errors": {str(nodes): error for nodes, error in grade.left_out.items()},
        "held_out_errors": [{"nodes": n, "rows": rows, "error": e} for (n, rows), e in grade.held_out.items()],
        "predictions": [_row_to_json(row, model) for row in _rows(curve, model, at)],
        "sentences": [formula_text(model), *_sentences(curve, model, at)],
    }


def _row_to_json(row: Row, model: Fit) -> dict[str, Any]:
    estimate = row.estimate
    return {
        "nodes": estimate.nodes,
        "rows": estimate.rows,
        "low": estimate.low,
        "middle": estimate.middle,
        "high": estimate.high,
        "extrapolated": estimate.extrapolated,
        "held_out": row.held_out,
        "expected_error": estimate.error,
        "error": row.error,
        "speed_up": model.speed_up(*row.position),
        "efficiency": model.efficiency(*row.position),
        "measured": row.measurement.seconds if row.measurement else None,
        "runs": len(row.measurement.runs) if row.measurement else 0,
    }


@dataclass(frozen=True)
class SuggestedRuns:
    """Runs of one configuration that would narrow the predictions."""

    curve: Curve
    nodes: int
    rows: float
    runs: int  # in addition to those there are
    seconds: float  # of all of them
    before: float  # the width of its curve's predictions without them, as a share
    width: float  # and with them and all earlier ones
    command: str

    @property
    def description(self) -> str:
        """Nodes, rows if there are several, number of runs and duration."""
        rows = [f"{self.rows:,.0f} rows"] * _several_rows(self.curve)
        runs = [f"{self.runs} runs"] * (self.runs > 1)
        return ", ".join([count(self.nodes, "node"), *rows, *runs, about(self.seconds)])


@dataclass(frozen=True)
class NextRuns:
    """The runs to make in order, and the duration of the shortest one that would help; None if none would."""

    suggestions: Sequence[SuggestedRuns]
    minutes: float
    shortest_s: float | None

    def lines(self) -> Iterator[str]:
        """Yield the sentence, and below it the runs by curve with their commands."""
        if not self.suggestions:
            yield (
                "No run would narrow the predictions much: they are as good as a few more measurements."
                if self.shortest_s is None
                else f"{self.minutes:g} min are too little for any run that would help: "
                f"the shortest takes about {about(self.shortest_s)}."
            )
            return
        runs, total = sum(one.runs for one in self.suggestions), sum(one.seconds for one in self.suggestions)
        yield f"Next, within {self.minutes:g} min: {count(runs, 'run')}, about {about(total)} together."
        by_curve: dict[int, list[SuggestedRuns]] = {}
        for one in self.suggestions:
            by_curve.setdefault(id(one.curve), []).append(one)
        for own in by_curve.values():
            first, last = max(one.before for one in own), min(one.width for one in own)
            yield f"  {own[0].curve.name}: predictions {_width(last)} instead of {_width(first)}"
            for one in own:
                yield f"    {one.description}"
                yield f"      {one.command}"

    def to_json(self) -> dict[str, Any]:
        return {
            "minutes": self.minutes,
            "sentence": next(self.lines()),
            "runs": [
                {
                    "engine": one.curve.engine,
                    "workload": one.curve.workload,
                    "nodes": one.nodes,
                    "rows": one.rows,
                    "runs": one.runs,
                    "seconds": one.seconds,
                    "width_before": one.before,
                    "width": one.width,
                    "command": one.command,
                }
                for one in self.suggestions
            ],
        }


def _width(width: float) -> str:
    return f"± {share_text(width)}" if width < 1 else "a guess"


def next_runs(result: ScaleResult, minutes: float, folder: Path) -> NextRuns:
    """Choose the runs that narrow the predictions of all curves most within some minutes."""
    single: list[tuple[Curve, Fit | None]] = [(curve, None) for curve in result.single if curve.spreads]
    found = {str(index): pair for index, pair in enumerate([*result.fits, *single])}
    subjects = {name: _subject(curve, model, result.at) for name, (curve, model) in found.items()}
    candidates = [one for name, (curve, _) in found.items() for one in _candidates(name, curve, subjects[name])]
    several = len({curve.workload for curve, _ in found.values()}) > 1
    by_configuration: dict[tuple[str, int, float], list[DesignedRun]] = {}
    for run in design(subjects, candidates, 60 * minutes):
        one = run.candidate
        by_configuration.setdefault((one.curve, one.nodes, one.rows), []).append(run)
    suggestions = []
    for (name, nodes, rows), runs in by_configuration.items():
        curve = found[name][0]
        duration = sum(run.candidate.seconds for run in runs)
        command = _command(curve, folder, several, nodes, rows, len(runs))
        before, after = runs[0].before, runs[-1].width
        suggestions.append(SuggestedRuns(curve, nodes, rows, len(runs), duration, before, after, command))
    helpful = design(subjects, candidates, math.inf)
    return NextRuns(suggestions, minutes, min((run.candidate.seconds for run in helpful), default=None))


def _subject(curve: Curve, model: Fit | None, at: Sequence[int]) -> Subject:
    counts = _predicted_counts(curve.counts, at)
    return Subject.of_fit(model, counts) if model else Subject.of_one_count(curve.measurements, counts)


def _candidates(name: str, curve: Curve, subject: Subject) -> list[RunCandidate]:
    most = max(*curve.counts, *(nodes for nodes, _ in subject.at))
    positions = grid(curve.counts, {one.rows for one in curve.measurements}, most)
    formula, per_1000 = _training_formula(curve, subject), curve.figure.name == PER_1000.name  # the same for all rows
    return [
        RunCandidate(name, nodes, rows, curve.overhead_s + formula.seconds(nodes, None if per_1000 else rows))
        for nodes, rows in positions
    ]


def _training_formula(curve: Curve, subject: Subject) -> Formula:
    """Return the formula of the whole training: a run takes as long, whatever figure of it is modelled."""
    whole = replace(curve, figure=FIGURES["train_s"])
    if curve.figure == whole.figure or not all(record.train_s for record in curve.records):
        return subject.formula
    return _subject(whole, fit(whole.measurements) if len(whole.counts) > 1 else None, ()).formula


def _command(curve: Curve, folder: Path, several_workloads: bool, nodes: int, rows: float, runs: int) -> str:
    """Return the command that makes additional runs of a curve's configuration."""
    several_rows = _several_rows(curve)
    argv = rerun_command(folder, curve.records[0].study, (*NODES, *([ROWS] if several_rows else [])))
    argv += ["--set", f"workload={curve.workload}"] if several_workloads else []
    argv += ["--engine", curve.engine, *_set_options(curve), "--set", f"{curve.key}={nodes}"]
    argv += ["--set", f"{ROWS}={rows:.0f}"] if several_rows else []
    existing = next((len(one.runs) for one in curve.measurements if (one.nodes, one.rows) == (nodes, rows)), 0)
    argv += ["--repeat", str(existing + runs)] if existing + runs > 1 else []
    return shlex.join(argv)


def _several_rows(curve: Curve) -> bool:
    return len({one.rows for one in curve.measurements}) > 1


def _set_options(curve: Curve) -> list[str]:
    """Return the options that select the curve's own trials; values that no option can express are left out."""
    settled = curve.records[0].settled
    options = []
    for key, value in curve.label.items():
        if key not in (*settled, "kind") and isinstance(value, bool | int | float | str) and " " not in str(value):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            text = text.lower() if isinstance(value, bool) else text
            options += ["--set", f"{'kind' if key == 'cluster' else key}={text}"]
    return options


def rerun_command(folder: Path, study: str, keys: Sequence[str]) -> list[str]:
    """Return the command that made the records of a study, which is noted beside them; else its general form.

    Engines, repetitions and the overrides of some keys are left out, because the new command has its own.
    """
    copy = study_copy(folder, study)
    noted = "" if copy is None else copy.read_text(errors="replace").partition("\n")[0]
    if copy is not None and noted.startswith("# trainoff reproduce "):
        return ["trainoff", "run", str(copy), "--out", str(copy.parent.parent)]
    if not noted.startswith("# trainoff run "):
        return ["trainoff", "run", "STUDY"]
    kept: list[str] = []
    arguments = iter(shlex.split(noted.removeprefix("# ")))
    for argument in arguments:
        if argument in REPLACED_OPTIONS:
            next(arguments, None)
        elif argument == "--set":
            value = next(arguments, "")
            kept += [] if value.partition("=")[0].strip() in keys else [argument, value]
        elif argument != "--json":
            kept.append(str(copy) if argument.endswith(".toml") and not Path(argument).is_file() else argument)
    return kept


def study_copy(folder: Path, study: str) -> Path | None:
    """Return the copy of a study that lies beside its records."""
    return next((path for path in (folder / STUDY_COPY, folder / study / STUDY_COPY) if path.is_file()), None)
