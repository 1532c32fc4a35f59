"""The tables and sentences of `trainoff scale`, and the same for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainoff.analysis.format import count, seconds, span, times
from trainoff.analysis.scaling import Config, Curve, Estimate, Fit, checked, mixed, off, sense, shape, share
from trainoff.cli.next_runs import NextRuns
from trainoff.report.columns import ALWAYS, Column, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
