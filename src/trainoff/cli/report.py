"""`trainoff report`: write the results as one HTML file that needs no network, or as Markdown."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from trainoff.cli import common
from trainoff.cli.show import price_book
from trainoff.errors import TrainoffError
from trainoff.files import write_output, writing
from trainoff.records import no_folder, no_records
from trainoff.report.html import Content, figure, gather, render
from trainoff.report.html.content import WorkloadSection
from trainoff.reproductions.published import output_path, published_name


def _default_path(folder: Path, name: str) -> Path:
    """Return the path of a report: in the folder of a study, but beside that of a single record."""
    if (folder / "record.json").exists():
        return folder.absolute().parent / f"{folder.absolute().name}-{name}"
    return output_path(folder, name)


def _write(path: Path, text: str) -> None:
    if path.is_dir():
        raise TrainoffError(f"{path}: this is a folder; name a file with -o")
    with writing(path, "report", "choose another with -o"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)


def _save_charts(content: Content, folder: Path, console: Console) -> dict[str, list[Path]]:
    """Save every chart as a PNG; return the paths by workload."""
    paths: dict[str, list[Path]] = {}
    for workload in content.workloads:
        for chart in workload.charts:
            name = re.sub(r"[^\w.-]+", "-", f"{workload.name}-{chart.name}.png")
            paths.setdefault(workload.name, []).append(figure(chart).save(folder / name))
    console.print(f"Pictures: {sum(map(len, paths.values()))} in {folder}", soft_wrap=True)
    return paths


def to_markdown(content: Content, charts: dict[str, list[Path]], folder: Path) -> str:
    """Return headline sentences, boards and caveats as Markdown for a file in a folder."""
    parts = [
        f"# {_escape(content.title)}",
        *(f"**{_escape(one)}**" for one in content.headlines),
        *([_escape(content.others)] if content.others else []),
        *(f"- {_escape(one)}" for one in (*content.assurances, *content.caveats)),
    ]
    for workload in content.workloads:
        parts += [f"## {_escape(workload.name)}", _table(workload)]
        for path in charts.get(workload.name, []):
            relative = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
            parts.append(f"![{path.stem}]({quote(relative)})")
        parts += [f"- {_escape(failed.name)}: {_escape(failed.sentence)}" for failed in workload.failures]
        parts += [f"{workload.more_failures:,} more did not end well."] if workload.more_failures else []
    parts += [f"- Cannot be read: {_escape(one)}" for one in content.damaged]
    if content.command:
        parts.append(f"Again: `{content.command}`")
    parts.append(f"Made by trainoff {content.version}, {content.made}; {content.counts}.")
    return "\n\n".join(parts) + "\n"


def _table(workload: WorkloadSection) -> str:
    names = [_escape(name) for name, _ in workload.board.headings]
    alignments = ["---:" if figures else "---" for _, figures in workload.board.headings]
    rows: list[Sequence[str]] = [names, alignments]
    for row in workload.board.rows:
        rows.append([_escape(f"{cell.text} ({cell.more})" if cell.more else cell.text) for cell in row.cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escape(text: str) -> str:
    """Return a text without meaning for Markdown or HTML."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", flat)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (DIR/report.html)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="also save every chart as a picture in this folder")
    parser.add_argument("--markdown", action="store_true", help="write Markdown, for READMEs and papers")
    common.add_prices(parser)
    parser.add_argument(
        "--usd-per-core-hour", type=float, metavar="USD", help="price of a core, for costs in the charts"
    )


def execute(options: argparse.Namespace) -> int:
    """Write the report and its pictures, and print their paths; exit code 1 if a record is damaged."""
    book = price_book(options.prices, options.usd_per_core_hour)
    folder, console = options.folder, common.console()
    if not folder.is_dir() and published_name(folder) is None:
        raise no_folder(folder)
    content = gather(folder, book)
    if not content.workloads and not content.damaged:
        raise no_records(folder)
    path = options.output or _default_path(folder, "report.md" if options.markdown else "report.html")
    charts = _save_charts(content, options.png, console) if options.png else {}
    _write(path, to_markdown(content, charts, path.parent) if options.markdown else render(content))
    console.print(f"Report: {path}", soft_wrap=True)
    if book and content.unpriced:
        console.print(content.unpriced, style="yellow", soft_wrap=True)
    for sentence in content.damaged:
        console.print(f"left out: {sentence}", style="yellow", soft_wrap=True)
    return 1 if content.damaged else 0
