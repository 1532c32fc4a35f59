"""`trainoff scale`: how time goes with the nodes, and what others would bring."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainoff.analysis import FIGURES, Figure, time_to
from trainoff.analysis.format import about, count, ratio_text, seconds, span
from trainoff.analysis.ranking import check_target, not_timed
from trainoff.analysis.scaling import (
    PER_1000,
    Curve,
    DesignedRun,
    Estimate,
    Fit,
    Formula,
    Measurement,
    RunCandidate,
    Subject,
    curves,
    design,
    error_text,
    fit,
    formula_text,
    grade_text,
    graded,
    grid,
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
    records, damaged = require_records(question.folder)
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
    config: Measurement | None
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
            return error_text(self.error)
        others = share_text(self.estimate.error)
        return f"about {others}" if others[0].isdigit() else others


def asked(counts: Sequence[int], at: Sequence[int]) -> list[int]:
    """The node counts to predict: those asked for, else twice the largest that was measured."""
    return list(at) or [2 * counts[-1]]


def rows_of_table(curve: Curve, model: Fit, at: Sequence[int]) -> list[Row]:
    """What was measured and what is asked for, by nodes and rows."""
    measured = {(one.nodes, one.rows): one for one in curve.measurements}
    fitted = {(one.nodes, one.rows) for one in model.measurements}
    sizes = sorted({one.rows for one in curve.measurements})
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
        console.print(f"{chr(10) if place else ''}{curve.name}{where}: {curve.figure.label}", style="bold")
        console.print(f"= {formula_text(model)}{_of_rows(model)}")
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
    doubt = shape_caution(model, max(asked(curve.counts, at)))
    return [interpretation(model), grade_text(model), *([doubt] if doubt else []), *model.remarks, *_left_out(curve)]


def _of_rows(model: Fit) -> str:
    several = len({config.rows for config in model.measurements}) > 1
    return f" ({model.formula.rows:,.0f} rows)" if several else ""


def _table(rows: Sequence[Row], model: Fit, width: int) -> Table:
    several = len({row.estimate.rows for row in rows}) > 1

    columns = [
        Column("nodes", [f"{row.estimate.nodes:,}" for row in rows], right=True),
        *([Column("rows", [f"{row.estimate.rows:,.0f}" for row in rows], right=True)] if several else []),
        Column("measured", [seconds(row.config.seconds if row.config else None) for row in rows], right=True),
        Column("runs", [str(len(row.config.runs)) if row.config else "-" for row in rows], 50, right=True),
        Column("predicted", [seconds(row.estimate.middle) for row in rows], right=True),
        Column("from to", [span(row.estimate.low, row.estimate.high) for row in rows], ALWAYS, right=True),
        Column("times faster", [ratio_text(model.speed_up(*row.place)) for row in rows], 60, right=True),
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
        "rows": model.formula.rows,
        "fitted_on": model.counts,
        "best_nodes": model.best_nodes(),
        "enough_nodes": model.enough_nodes(),
        "left_out_errors": {str(nodes): error for nodes, error in grade.left_out.items()},
        "held_out_errors": [{"nodes": n, "rows": rows, "error": e} for (n, rows), e in grade.held_out.items()],
        "predictions": [_row(row, model) for row in rows_of_table(curve, model, at)],
        "sentences": [formula_text(model), *_sentences(curve, model, at)],
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


FOLLOWED = ("--engine", "--repeat", "--retry")  # options with a value that a new command has its own of
NODES = ("nodes", "workers")  # the keys that say how many there are
ROWS = "train_rows"


class Curves(Protocol):
    """What could be fitted, and what has one number of nodes only."""

    @property
    def fits(self) -> Sequence[tuple[Curve, Fit]]: ...

    @property
    def single(self) -> Sequence[Curve]: ...


@dataclass(frozen=True)
class Wanted:
    """Runs of one configuration that should be made."""

    curve: Curve
    nodes: int
    rows: float
    runs: int  # how many more
    seconds: float  # all of them together
    before: float  # how wide the predictions of its curve are without them, as a share
    width: float  # and once they and all before them have been made
    command: str

    @property
    def what(self) -> str:
        """Its nodes, its rows where there are several, how many runs and how long."""
        rows = [f"{self.rows:,.0f} rows"] if _several_rows(self.curve) else []
        runs = [] if self.runs == 1 else [f"{self.runs} runs"]
        return ", ".join([count(self.nodes, "node"), *rows, *runs, about(self.seconds)])


@dataclass(frozen=True)
class NextRuns:
    """The runs to make, in order, and the seconds of the shortest that would help; None if none would."""

    wanted: Sequence[Wanted]
    minutes: float
    shortest_s: float | None

    def lines(self) -> Iterator[str]:
        """For a person."""
        if not self.wanted:
            yield self._why_nothing()
            return
        whole = sum(one.seconds for one in self.wanted)
        yield (
            f"Next, within {self.minutes:g} min: {count(sum(one.runs for one in self.wanted), 'run')}, "
            f"about {about(whole)} together."
        )
        for own in self._by_curve():
            first, last = max(one.before for one in own), min(one.width for one in own)
            yield f"  {own[0].curve.name}: predictions {_width(last)} instead of {_width(first)}"
            for one in own:
                yield f"    {one.what}"
                yield f"      {one.command}"

    def _by_curve(self) -> list[list[Wanted]]:
        """The runs of each curve, in the order in which curves were first chosen."""
        found: dict[int, list[Wanted]] = {}
        for one in self.wanted:
            found.setdefault(id(one.curve), []).append(one)
        return list(found.values())

    def _why_nothing(self) -> str:
        if self.shortest_s is not None:
            return (
                f"{self.minutes:g} min are too little for any run that would help: "
                f"the shortest takes about {about(self.shortest_s)}."
            )
        return "No run would sharpen the predictions much: they are as good as a few more measurements."

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
                for one in self.wanted
            ],
        }


def _width(width: float) -> str:
    return f"± {share_text(width)}" if width < 1 else "a guess"


def next_runs(known: Curves, at: Sequence[int], minutes: float, folder: Path) -> NextRuns:
    """Choose the runs that narrow the predictions of all curves most within these minutes."""
    found = {str(place): pair for place, pair in enumerate([*known.fits, *_alone(known.single)])}
    subjects = {name: _subject(curve, model, at) for name, (curve, model) in found.items()}
    candidates = [one for name, (curve, _) in found.items() for one in _candidates(name, curve, subjects[name])]
    chosen = design(subjects, candidates, 60 * minutes)
    commands = {id(curve): _command(curve, folder, found) for curve, _ in found.values()}
    wanted = _gathered(chosen, {name: curve for name, (curve, _) in found.items()}, commands)
    helpful = design(subjects, candidates, math.inf)
    return NextRuns(wanted, minutes, min((choice.candidate.seconds for choice in helpful), default=None))


def _alone(single: Sequence[Curve]) -> list[tuple[Curve, Fit | None]]:
    """The curves that have one number of nodes and could have more."""
    return [(curve, None) for curve in single if curve.spreads]


def _subject(curve: Curve, model: Fit | None, at: Sequence[int]) -> Subject:
    goals = list(at) or [2 * curve.counts[-1]]
    return Subject.of_fit(model, goals) if model else Subject.of_one_count(curve.measurements, goals)


def _candidates(name: str, curve: Curve, subject: Subject) -> list[RunCandidate]:
    most = max(*curve.counts, *(nodes for nodes, _ in subject.at))
    places = grid(curve.counts, {config.rows for config in curve.measurements}, most)
    mix, alike = _of_training(curve, subject), curve.figure.name == PER_1000.name  # whose rows are all told as one
    return [
        RunCandidate(name, n, rows, curve.overhead_s + mix.seconds(n, None if alike else rows)) for n, rows in places
    ]


def _of_training(curve: Curve, subject: Subject) -> Formula:
    """The model of a whole training: so long a run takes, whatever figure of it is asked for."""
    whole = replace(curve, figure=FIGURES["train_s"])
    if curve.figure == whole.figure or not all(record.train_s for record in curve.records):
        return subject.formula
    return _subject(whole, fit(whole.measurements) if len(whole.counts) > 1 else None, ()).formula


def _gathered(
    chosen: Sequence[DesignedRun], curves: Mapping[str, Curve], commands: Mapping[int, Sequence[str]]
) -> list[Wanted]:
    """One entry for each configuration, in the order in which they were first chosen."""
    found: dict[tuple[str, int, float], list[DesignedRun]] = {}
    for choice in chosen:
        one = choice.candidate
        found.setdefault((one.curve, one.nodes, one.rows), []).append(choice)
    made = []
    for (name, nodes, rows), choices in found.items():
        curve = curves[name]
        there = next((len(one.runs) for one in curve.measurements if (one.nodes, one.rows) == (nodes, rows)), 0)
        words = [*commands[id(curve)], "--set", f"{curve.key}={nodes}"]
        words += ["--set", f"{ROWS}={rows:.0f}"] if _several_rows(curve) else []
        words += ["--repeat", str(there + len(choices))] if there + len(choices) > 1 else []
        took, widths = sum(choice.candidate.seconds for choice in choices), (choices[0].before, choices[-1].width)
        made.append(Wanted(curve, nodes, rows, len(choices), took, *widths, shlex.join(words)))
    return made


def _command(curve: Curve, folder: Path, found: Mapping[str, tuple[Curve, Fit | None]]) -> list[str]:
    """The command that made these records, less what the next one says itself."""
    words = said(folder, curve.records[0].study, (*NODES, *([ROWS] if _several_rows(curve) else [])))
    if len({other.workload for other, _ in found.values()}) > 1:
        words = [*words, "--set", f"workload={curve.workload}"]
    return [*words, "--engine", curve.engine, *_sets(curve)]


def _several_rows(curve: Curve) -> bool:
    return len({config.rows for config in curve.measurements}) > 1


def _sets(curve: Curve) -> list[str]:
    """What sets a curve apart, as options, so that only its own trials run; but for what no option can say."""
    settled = curve.records[0].settled
    words = []
    for key, value in curve.apart.items():
        if key not in (*settled, "kind") and isinstance(value, bool | int | float | str) and " " not in str(value):
            words += ["--set", f"{'kind' if key == 'cluster' else key}={_typed(value)}"]
    return words


def _typed(value: bool | float | str) -> str:
    """A value as one types it after --set."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def said(folder: Path, study: str, sets: Sequence[str]) -> list[str]:
    """The command that a run left beside its records, on the same study file or its copy; a form without one.

    What the next command says itself is left out of it: engines, repetitions, and the keys in `sets`.
    """
    copy = study_copy(folder, study)
    first = "" if copy is None else copy.read_text(errors="replace").partition("\n")[0]
    if copy is not None and first.startswith("# trainoff reproduce "):
        return ["trainoff", "run", str(copy), "--out", str(copy.parent.parent)]
    if not first.startswith("# trainoff run "):
        return ["trainoff", "run", "STUDY"]
    kept: list[str] = []
    words = iter(shlex.split(first.removeprefix("# ")))
    for word in words:
        if word in FOLLOWED:
            next(words, None)
        elif word == "--set":
            value = next(words, "")
            kept += [] if value.partition("=")[0].strip() in sets else [word, value]
        elif word != "--json":
            kept.append(str(copy) if word.endswith(".toml") and not Path(word).is_file() else word)
    return kept


def study_copy(folder: Path, study: str) -> Path | None:
    """The copy of a study that lies beside its records."""
    return next((path for path in (folder / STUDY_COPY, folder / study / STUDY_COPY) if path.is_file()), None)
