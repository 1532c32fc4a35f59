"""`trainoff reproduce`: run a published study here, judge its claims, and write the page that tells of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff import engines, study
from trainoff.analysis import newest
from trainoff.analysis.format import about, count
from trainoff.cli.run import run_part
from trainoff.errors import TrainoffError
from trainoff.records import Damaged, Record, scan
from trainoff.report.reproduced import ASKED, page, pictures
from trainoff.reproductions import CONFIRMED, NOT_COMPARABLE, REFUTED, Judged, judge, studies, summary

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {CONFIRMED: "green", REFUTED: "red", NOT_COMPARABLE: "yellow"}
PAGE = "reproduction.md"


def reproduce(
    name: str, out: Path, where: Path | None, only_judge: bool, console: Console
) -> tuple[list[Judged], list[Damaged]]:
    """Run what is missing of a reproduction, print a verdict on each claim, write its page; damaged records apart."""
    folder = out / name
    paths = studies(name)
    began = time.monotonic()
    for path in [] if only_judge else paths:
        run_part(study.read(path, engines.facts(), sets=(), repeat=None), folder, console)
    spent = None if only_judge else time.monotonic() - began
    found, damaged = scan(folder) if folder.is_dir() else ([], [])
    records = newest(found)
    if only_judge and not records:
        raise TrainoffError(f"{folder}: no records here to judge by; without --only-judge it runs and makes them")
    judged = judge(name, records)
    tell(judged, console)
    target = where or folder / PAGE
    _write(name, target, judged, records)
    took = f" in {about(spent)}" if spent else ""
    console.print(f"\n{name}: {summary(judged)}, by {count(len(records), 'record')}{took}", style="bold")
    console.print(f"Page: {target}        Report: trainoff report {folder}", style="dim", soft_wrap=True)
    return judged, damaged


def _write(name: str, target: Path, judged: list[Judged], records: list[Record]) -> None:
    """The page, its pictures, and the verdicts for programs, side by side."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        drawn = pictures(name, records, target.parent)
        target.write_text(page(name, judged, records, drawn), encoding="utf-8")
        target.with_suffix(".json").write_text(json.dumps(as_json(judged), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise TrainoffError(f"{target}: the page cannot be written there ({error.strerror}); choose another") from error


def tell(judged: list[Judged], console: Console) -> None:
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
    from trainoff.report.columns import Column, table

    columns = [Column(key, [one[key] for one in known], shrinks=key == "asks") for key in known[0]]
    console.print(table(columns, console.width, [None] * len(known), folds=True))
    console.print("\nRun one with `trainoff reproduce NAME`; each takes less than 20 minutes on two cores.")


def as_json(judged: list[Judged]) -> list[dict[str, str | None]]:
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
