"""The page of a reproduction, as Markdown with pictures: the question, the published answer, ours, how to repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trainoff.records import Record
from trainoff.report.page.content import environment
from trainoff.report.page.encode import LEGEND, Spec
from trainoff.report.page.figure import CONFIG, Figure
from trainoff.reproductions import Drawing, Judged, drawings, scale, studies, summary
from trainoff.reproductions.published import Document, documents

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


def pictures(name: str, records: Sequence[Record], folder: Path) -> list[tuple[Drawing, str]]:
    """Draw the figures into a folder; each with the name of its file."""
    drawn = []
    for drawing in drawings(name, records):
        file = f"{name}-{drawing.name}.svg"
        Figure(spec(drawing)).save(folder / file)
        drawn.append((drawing, file))
    return drawn


def spec(drawing: Drawing) -> Spec:
    """Published on the left, measured on the right; by the same measure, for both are ratios."""
    values = [row["value"] for row in drawing.rows]
    height = "log" if max(values) > WIDE * min(values) else "linear"
    x: Spec = {"field": "x", "title": drawing.x}
    if drawing.amounts:
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
            "mark": line if drawing.joined else points,
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


def page(name: str, judged: Sequence[Judged], records: Sequence[Record], drawn: Sequence[tuple[Drawing, str]]) -> str:
    """The whole page."""
    asked_by = [document for document in documents() if name in document.studies]
    parts = [
        f"# {name}: {ASKED[name]}",
        "Made by `trainoff reproduce` from real runs; every verdict is by their records and by nothing else.",
        "## Who asked",
        "\n".join(f"- {document.id}, *{document.title}* ({_source(document)})" for document in asked_by),
        "## At which scale",
        "\n".join(f"- {scale(path)}" for path in studies(name)),
        "## What came out",
        f"**{summary(judged)}.** Absolute seconds are not compared across machines; ratios, orders and shapes are. "
        "What differs by less than a tenth counts as alike.",
        _verdicts(judged),
        *(_picture(drawing, file) for drawing, file in drawn),
        "## Where it ran, and how to repeat it",
        _where(records),
        f"    trainoff reproduce {name}",
    ]
    return "\n\n".join(parts) + "\n"


def _source(document: Document) -> str:
    return ", ".join(part for part in (document.form, document.date) if part)


def _verdicts(judged: Sequence[Judged]) -> str:
    lines = ["| the document says | published | measured here | verdict |", "|---|---|---|---|"]
    for one in judged:
        claim, finding = one.claim, one.finding
        said = f"{claim.says} *({claim.document}, {claim.where})*"
        verdict = f"**{finding.verdict}**" + (f": {finding.reason}" if finding.reason else "")
        lines.append("| " + " | ".join(map(_cell, (said, claim.published or "-", finding.measured, verdict))) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _picture(drawing: Drawing, file: str) -> str:
    return f"![{drawing.title}: published and measured here]({file})\n\n{drawing.about}"


def _where(records: Sequence[Record]) -> str:
    """The machine, the versions, the date, and how the trials ended."""
    if not records:
        return "It has not run yet."
    last = max(record.started_at or "" for record in records)
    ended = ", ".join(f"{number} {status}" for status, number in Counter(r.status for r in records).most_common())
    told = [("trials", f"{ended}; the last on {last[:10]}"), *environment(records)]
    return "\n".join(f"- {name}: {value}" for name, value in told if name in TOLD)
