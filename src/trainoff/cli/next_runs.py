"""What to run next so that a scaling model sees better, with the commands that run it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trainoff.analysis.figures import FIGURES
from trainoff.analysis.format import about, count
from trainoff.analysis.scaling import (
    PER_1000,
    Curve,
    DesignedRun,
    Fit,
    Mix,
    RunCandidate,
    Subject,
    design,
    fit,
    grid,
    share,
)
from trainoff.records import STUDY_COPY

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
    return f"± {share(width)}" if width < 1 else "a guess"


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
    return Subject.of_fit(model, goals) if model else Subject.of_one_count(curve.configs, goals)


def _candidates(name: str, curve: Curve, subject: Subject) -> list[RunCandidate]:
    most = max(*curve.counts, *(nodes for nodes, _ in subject.at))
    places = grid(curve.counts, {config.rows for config in curve.configs}, most)
    mix, alike = _of_training(curve, subject), curve.figure.name == PER_1000.name  # whose rows are all told as one
    return [
        RunCandidate(name, n, rows, curve.overhead_s + mix.seconds(n, None if alike else rows)) for n, rows in places
    ]


def _of_training(curve: Curve, subject: Subject) -> Mix:
    """The model of a whole training: so long a run takes, whatever figure of it is asked for."""
    whole = replace(curve, figure=FIGURES["train_s"])
    if curve.figure == whole.figure or not all(record.train_s for record in curve.records):
        return subject.mix
    return _subject(whole, fit(whole.configs) if len(whole.counts) > 1 else None, ()).mix


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
        there = next((len(one.runs) for one in curve.configs if (one.nodes, one.rows) == (nodes, rows)), 0)
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
    return len({config.rows for config in curve.configs}) > 1


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
