"""`trainoff reproduce`: run a published study, and check its claims by the records."""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainoff import engines, study
from trainoff.analysis import newest
from trainoff.analysis.format import about, count
from trainoff.cli import common
from trainoff.cli.run import run_part
from trainoff.cli.show import warn
from trainoff.errors import TrainoffError
from trainoff.files import write_output, writing
from trainoff.records import DamagedRecord, Record, scan
from trainoff.report.html import CONFIG, ChartFigure
from trainoff.report.html.content import environment
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

STYLES = {CONFIRMED: "green", REFUTED: "red", NOT_COMPARABLE: "yellow"}
PAGE = "reproduction.md"
CONDITIONS = ("trials", "machine", "python", "java", "libraries")  # on the page, of all in a report
WIDTH, HEIGHT = 300, 240
WIDE_RANGE = 20  # times the smallest value: above it the axis is logarithmic
QUESTIONS = {
    "ml-parameters": "What do the parameters of learning cost, and what do they bring?",
    "sync-async": "Should workers wait for each other, and what happens when one dies?",
    "machines-and-clusters": "Which machine, and how many of them?",
    "batch-size": "How large should a batch be?",
    "executors": "Few large executors or many small ones, and Spark or Dask?",
    "tf-on-spark": "Does TensorFlow run on Spark, and what does Spark cost it?",
}


def reproduce(
    name: str, out: Path, page: Path | None, only_judge: bool, console: Console
) -> tuple[list[ClaimResult], list[DamagedRecord]]:
    """Run the remaining trials, print a verdict on each claim and write the page; return verdicts, damaged records."""
    folder = out / name
    start = time.monotonic()
    for path in study_files(name):
        if not only_judge:
            run_part(study.read(path, engines.facts()), folder, console)
    took = "" if only_judge else f" in {about(time.monotonic() - start)}"
    found, damaged = scan(folder) if folder.is_dir() else ([], [])
    records = newest(found)
    if only_judge and not records:
        raise TrainoffError(f"{folder}: no records here to judge by; run it without --only-judge to make them")
    results = evaluate(name, records)
    print_claims(results, console)
    path = page or folder / PAGE
    _write_page(name, path, results, records)
    console.print(f"\n{name}: {verdict_counts(results)}, by {count(len(records), 'record')}{took}", style="bold")
    console.print(f"Page: {path}        Report: trainoff report {folder}", style="dim", soft_wrap=True)
    return results, damaged


def print_claims(results: Sequence[ClaimResult], console: Console) -> None:
    """Print what the document says, what was published and measured, and the verdict on each claim."""
    for one in results:
        claim, finding = one.claim, one.finding
        verdict = (finding.verdict, STYLES[finding.verdict])
        source = f"  ({claim.document}, {claim.where})"
        console.print(Text.assemble("\n", (claim.id, "bold"), ": ", verdict, (source, "dim")))
        rows = {"says": claim.says, "published": claim.published, "here": finding.measured, "because": finding.reason}
        table = Table.grid(padding=(0, 1))
        for label, text in rows.items():
            if text and text != "-":
                table.add_row(f"  {label}", Text(text))
        console.print(table)


def print_names(rows: Sequence[dict[str, str]], console: Console) -> None:
    """Print the reproductions with their questions."""
    from trainoff.report.tables import Column, table

    columns = [Column(key, [row[key] for row in rows], shrinks=key == "asks") for key in rows[0]]
    console.print(table(columns, console.width, folds=True))
    console.print("\nRun one with `trainoff reproduce NAME`; each takes less than 20 minutes on two cores.")


def to_json(results: Sequence[ClaimResult]) -> list[dict[str, str | None]]:
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
        for one in results
    ]


def _write_page(name: str, path: Path, results: Sequence[ClaimResult], records: Sequence[Record]) -> None:
    """Write the page, and beside it the charts and the verdicts as JSON."""
    with writing(path, "page", "choose another"):
        path.parent.mkdir(parents=True, exist_ok=True)
        charts = []
        for chart in ratio_charts(name, records):
            file = f"{name}-{chart.name}.svg"
            ChartFigure(chart_spec(chart)).save(path.parent / file)
            charts.append(f"![{chart.title}: published and measured here]({file})\n\n{chart.about}")
        write_output(path, _page(name, results, records, charts))
        path.with_suffix(".json").write_text(json.dumps(to_json(results), indent=1) + "\n", encoding="utf-8")


def chart_spec(chart: RatioChart) -> Spec:
    """Return the specification of a chart: published on the left, measured on the right, on one scale of ratios."""
    values = [row["value"] for row in chart.rows]
    scale = "log" if max(values) > WIDE_RANGE * min(values) else "linear"
    x: Spec = {"field": "x", "title": chart.x}
    if chart.numeric_x:
        x |= {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 10}}
    else:
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -40}}
    line, points = {"type": "line", "point": True, "strokeWidth": 1.6}, {"type": "point", "filled": True, "size": 70}
    y = {"field": "value", "type": "quantitative", "title": chart.y, "scale": {"type": scale, "zero": False}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"values": list(chart.rows)},
        "facet": {"column": {"field": "source", "title": None, "sort": "descending"}},
        "spec": {
            "width": WIDTH,
            "height": HEIGHT,
            "mark": line if chart.connected else points,
            "encoding": {
                "x": x,
                "y": y,
                "color": {"field": "series", "type": "nominal", "legend": LEGEND, "scale": {"scheme": "tableau20"}},
            },
        },
        "resolve": {"scale": {"x": "independent"}},
        "title": {"text": chart.title, "anchor": "start"},
        "config": CONFIG,
    }  # fmt: skip


def _page(name: str, results: Sequence[ClaimResult], records: Sequence[Record], charts: Sequence[str]) -> str:
    sources = [document for document in documents() if name in document.studies]
    parts = [
        f"# {name}: {QUESTIONS[name]}",
        "Made by `trainoff reproduce` from real runs; every verdict is by their records and by nothing else.",
        "## Who asked",
        "\n".join(f"- {document.id}, *{document.title}* ({_publication(document)})" for document in sources),
        "## At which scale",
        "\n".join(f"- {scale_text(path)}" for path in study_files(name)),
        "## What came out",
        f"**{verdict_counts(results)}.** Absolute seconds are not compared across machines; ratios, orders and shapes "
        "are. What differs by less than a tenth counts as alike.",
        _verdict_table(results),
        *charts,
        "## Where it ran, and how to repeat it",
        _conditions(records),
        f"    trainoff reproduce {name}",
    ]
    return "\n\n".join(parts) + "\n"


def _publication(document: Document) -> str:
    return ", ".join(part for part in (document.form, document.date) if part)


def _verdict_table(results: Sequence[ClaimResult]) -> str:
    lines = ["| the document says | published | measured here | verdict |", "|---|---|---|---|"]
    for one in results:
        claim, finding = one.claim, one.finding
        says = f"{claim.says} *({claim.document}, {claim.where})*"
        verdict = f"**{finding.verdict}**" + (f": {finding.reason}" if finding.reason else "")
        cells = (says, claim.published or "-", finding.measured, verdict)
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join(lines)


def _conditions(records: Sequence[Record]) -> str:
    """Return the statuses of the trials, the machine and the versions as a list."""
    if not records:
        return "It has not run yet."
    last = max(record.started_at or "" for record in records)
    ended = ", ".join(f"{number} {status}" for status, number in Counter(r.status for r in records).most_common())
    rows = [("trials", f"{ended}; the last on {last[:10]}"), *environment(records)]
    return "\n".join(f"- {name}: {value}" for name, value in rows if name in CONDITIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the reproduction; without it, a list of all")
    parser.add_argument("--out", type=Path, default=Path("results/reproduce"), metavar="DIR",
                        help="folder for results (results/reproduce)")  # fmt: skip
    parser.add_argument("--page", type=Path, metavar="FILE", help="page to write (reproduction.md beside the records)")
    parser.add_argument("--only-judge", action="store_true", help="judge by the records there are, without a run")


def execute(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.name is None:
        rows = [{"reproduction": name, "asks": question} for name, question in QUESTIONS.items()]
        return common.print_facts(rows, print_names, options)
    console = common.console(stderr=options.json)
    results, damaged = reproduce(options.name, options.out, options.page, options.only_judge, console)
    if options.json:
        print(json.dumps(to_json(results), indent=1))
    return warn(damaged)
