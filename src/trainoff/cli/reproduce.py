"""`trainoff reproduce`: a published study, run here, beside its published figures."""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff import engines, study
from trainoff.analysis import newest
from trainoff.analysis.format import about, count
from trainoff.cli import common
from trainoff.cli.run import run_part
from trainoff.errors import TrainoffError
from trainoff.records import DamagedRecord, Record, scan
from trainoff.report.html.content import environment
from trainoff.report.html.render import CONFIG, ChartFigure
from trainoff.report.html.style import LEGEND, Spec
from trainoff.reproductions import (
    CONFIRMED,
    NOT_COMPARABLE,
    REFUTED,
    ClaimResult,
    RatioChart,
    evaluate,
    ratio_charts,
    scale_text,
    study_files,
    verdict_counts,
)
from trainoff.reproductions.published import Document, documents

if TYPE_CHECKING:
    from rich.console import Console


STYLES = {CONFIRMED: "green", REFUTED: "red", NOT_COMPARABLE: "yellow"}
PAGE = "reproduction.md"


def reproduce(
    name: str, out: Path, where: Path | None, only_judge: bool, console: Console
) -> tuple[list[ClaimResult], list[DamagedRecord]]:
    """Run what is missing of a reproduction, print a verdict on each claim, write its page; damaged records apart."""
    folder = out / name
    paths = study_files(name)
    began = time.monotonic()
    for path in [] if only_judge else paths:
        run_part(study.read(path, engines.facts(), overrides=(), repeat=None), folder, console)
    spent = None if only_judge else time.monotonic() - began
    found, damaged = scan(folder) if folder.is_dir() else ([], [])
    records = newest(found)
    if only_judge and not records:
        raise TrainoffError(f"{folder}: no records here to judge by; without --only-judge it runs and makes them")
    judged = evaluate(name, records)
    tell(judged, console)
    target = where or folder / PAGE
    _write(name, target, judged, records)
    took = f" in {about(spent)}" if spent else ""
    console.print(f"\n{name}: {verdict_counts(judged)}, by {count(len(records), 'record')}{took}", style="bold")
    console.print(f"Page: {target}        Report: trainoff report {folder}", style="dim", soft_wrap=True)
    return judged, damaged


def _write(name: str, target: Path, judged: list[ClaimResult], records: list[Record]) -> None:
    """The page, its pictures, and the verdicts for programs, side by side."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        drawn = pictures(name, records, target.parent)
        target.write_text(page(name, judged, records, drawn), encoding="utf-8")
        target.with_suffix(".json").write_text(json.dumps(as_json(judged), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise TrainoffError(f"{target}: the page cannot be written there ({error.strerror}); choose another") from error


def tell(judged: list[ClaimResult], console: Console) -> None:
    """Claim by claim: what the document says, what was published, what was measured, and the verdict."""
    from rich.table import Table
    from rich.text import Text

    for one in judged:
        claim, finding = one.claim, one.finding
        verdict = (finding.verdict, STYLES[finding.verdict])
        where = f"  ({claim.document}, {claim.where})"
        console.print(Text.assemble("\n", (claim.id, "bold"), ": ", verdict, (where, "dim")))
        lines = Table.grid(padding=(0, 1))
        told = {"says": claim.says, "published": claim.published, "here": finding.measured, "because": finding.reason}
        for name, words in told.items():
            if words and words != "-":
                lines.add_row(f"  {name}", Text(words))
        console.print(lines)


def listing() -> list[dict[str, str]]:
    """The reproductions, and what each asks."""
    return [{"reproduction": name, "asks": asks} for name, asks in ASKED.items()]


def tell_names(known: list[dict[str, str]], console: Console) -> None:
    """The same for a person."""
    from trainoff.report.tables import Column, table

    columns = [Column(key, [one[key] for one in known], shrinks=key == "asks") for key in known[0]]
    console.print(table(columns, console.width, [None] * len(known), folds=True))
    console.print("\nRun one with `trainoff reproduce NAME`; each takes less than 20 minutes on two cores.")


def as_json(judged: list[ClaimResult]) -> list[dict[str, str | None]]:
    """The verdicts for programs."""
    return [
        {
            "claim": one.claim.id,
            "document": one.claim.document,
            "where": one.claim.where,
            "says": one.claim.says,
            "published": one.claim.published,
            "measured": one.finding.measured,
            "verdict": one.finding.verdict,
            "reason": one.finding.reason,
        }
        for one in judged
    ]


ASKED = {  # what each asks, as one asks it today
    "ml-parameters": "What do the parameters of learning cost, and what do they bring?",
    "sync-async": "Should workers wait for each other, and what happens when one dies?",
    "machines-and-clusters": "Which machine, and how many of them?",
    "batch-size": "How large should a batch be?",
    "executors": "Few large executors or many small ones, and Spark or Dask?",
    "tf-on-spark": "Does TensorFlow run on Spark, and what does Spark cost it?",
}
WIDTH, HEIGHT = 300, 240
WIDE = 20  # times the smallest value: then only logarithms show the small ones
TOLD = ("trials", "machine", "python", "java", "libraries")  # of the conditions


def pictures(name: str, records: Sequence[Record], folder: Path) -> list[tuple[RatioChart, str]]:
    """Draw the figures into a folder; each with the name of its file."""
    drawn = []
    for drawing in ratio_charts(name, records):
        file = f"{name}-{drawing.name}.svg"
        ChartFigure(spec(drawing)).save(folder / file)
        drawn.append((drawing, file))
    return drawn


def spec(drawing: RatioChart) -> Spec:
    """Published on the left, measured on the right; by the same measure, for both are ratios."""
    values = [row["value"] for row in drawing.rows]
    height = "log" if max(values) > WIDE * min(values) else "linear"
    x: Spec = {"field": "x", "title": drawing.x}
    if drawing.numeric_x:
        x |= {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 10}}
    else:
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -40}}
    line, points = {"type": "line", "point": True, "strokeWidth": 1.6}, {"type": "point", "filled": True, "size": 70}
    y = {"field": "value", "type": "quantitative", "title": drawing.y, "scale": {"type": height, "zero": False}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"values": list(drawing.rows)},
        "facet": {"column": {"field": "source", "title": None, "sort": "descending"}},
        "spec": {
            "width": WIDTH,
            "height": HEIGHT,
            "mark": line if drawing.connected else points,
            "encoding": {
                "x": x,
                "y": y,
                "color": {"field": "series", "type": "nominal", "legend": LEGEND, "scale": {"scheme": "tableau20"}},
            },
        },
        "resolve": {"scale": {"x": "independent"}},
        "title": {"text": drawing.title, "anchor": "start"},
        "config": CONFIG,
    }  # fmt: skip


def page(
    name: str, judged: Sequence[ClaimResult], records: Sequence[Record], drawn: Sequence[tuple[RatioChart, str]]
) -> str:
    """The whole page."""
    asked_by = [document for document in documents() if name in document.studies]
    parts = [
        f"# {name}: {ASKED[name]}",
        "Made by `trainoff reproduce` from real runs; every verdict is by their records and by nothing else.",
        "## Who asked",
        "\n".join(f"- {document.id}, *{document.title}* ({_source(document)})" for document in asked_by),
        "## At which scale",
        "\n".join(f"- {scale_text(path)}" for path in study_files(name)),
        "## What came out",
        f"**{verdict_counts(judged)}.** Absolute seconds are not compared across machines; ratios, orders and shapes "
        "are. What differs by less than a tenth counts as alike.",
        _verdicts(judged),
        *(_picture(drawing, file) for drawing, file in drawn),
        "## Where it ran, and how to repeat it",
        _where(records),
        f"    trainoff reproduce {name}",
    ]
    return "\n\n".join(parts) + "\n"


def _source(document: Document) -> str:
    return ", ".join(part for part in (document.form, document.date) if part)


def _verdicts(judged: Sequence[ClaimResult]) -> str:
    lines = ["| the document says | published | measured here | verdict |", "|---|---|---|---|"]
    for one in judged:
        claim, finding = one.claim, one.finding
        said = f"{claim.says} *({claim.document}, {claim.where})*"
        verdict = f"**{finding.verdict}**" + (f": {finding.reason}" if finding.reason else "")
        lines.append("| " + " | ".join(map(_cell, (said, claim.published or "-", finding.measured, verdict))) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _picture(drawing: RatioChart, file: str) -> str:
    return f"![{drawing.title}: published and measured here]({file})\n\n{drawing.about}"


def _where(records: Sequence[Record]) -> str:
    """The machine, the versions, the date, and how the trials ended."""
    if not records:
        return "It has not run yet."
    last = max(record.started_at or "" for record in records)
    ended = ", ".join(f"{number} {status}" for status, number in Counter(r.status for r in records).most_common())
    told = [("trials", f"{ended}; the last on {last[:10]}"), *environment(records)]
    return "\n".join(f"- {name}: {value}" for name, value in told if name in TOLD)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="which; without it, the list of them")
    parser.add_argument("--out", type=Path, default=Path("results/reproduce"), metavar="DIR",
                     help="where results go (results/reproduce)")  # fmt: skip
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="where its page goes (reproduction.md, by the records)"
    )
    parser.add_argument("--only-judge", action="store_true", help="run nothing: judge by the records that are there")


def execute(options: argparse.Namespace) -> int:
    from trainoff.cli.show import warn

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.name is None:
        return common.print_facts(listing(), tell_names, options)
    terminal = common.console(stderr=options.json)
    judged, damaged = reproduce(options.name, options.out, options.page, options.only_judge, terminal)
    if options.json:
        print(json.dumps(as_json(judged), indent=1))
    return warn(damaged)
