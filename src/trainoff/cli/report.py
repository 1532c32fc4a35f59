"""`trainoff report`: one HTML file with all of it, for the browser, without a network."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trainoff.cli import common
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write
from trainoff.records import no_folder, no_records
from trainoff.report.html import Content, gather, render
from trainoff.report.html.content import Cell, WorkloadSection
from trainoff.reproductions.published import output_path, published_name
from trainoff.study.machines import PriceBook

if TYPE_CHECKING:
    from rich.console import Console


def write_report(
    folder: Path, out: Path | None, pictures: Path | None, markdown: bool, book: PriceBook | None, console: Console
) -> int:
    """Write what was asked for and name it; 1 if a record could not be read."""
    if not folder.is_dir() and published_name(folder) is None:
        raise no_folder(folder)
    content = gather(folder, book)
    if not content.workloads and not content.damaged:
        raise no_records(folder)
    path = out or _place(folder, "report.md" if markdown else "report.html")
    drawn = _draw(content, pictures, console) if pictures else {}
    _write(path, as_markdown(content, drawn, path.parent) if markdown else render(content))
    console.print(f"Report: {path}", soft_wrap=True)
    if book and content.unpriced:
        console.print(content.unpriced, style="yellow", soft_wrap=True)
    for sentence in content.damaged:
        console.print(f"not in it: {sentence}", style="yellow", soft_wrap=True)
    return 1 if content.damaged else 0


def _place(folder: Path, name: str) -> Path:
    """Where a report goes; a record is never written into, what is made of it goes beside it."""
    if (folder / "record.json").exists():
        return folder.absolute().parent / f"{folder.absolute().name}-{name}"
    return output_path(folder, name)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader may have the old one open."""
    if path.is_dir():
        raise TrainoffError(f"{path}: this is a folder; name a file with -o")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        raise TrainoffError(
            f"{path}: the report cannot be written there ({error.strerror}); choose another with -o"
        ) from error


def _draw(content: Content, pictures: Path, console: Console) -> dict[str, list[Path]]:
    """A PNG for every chart, named after its workload and itself."""
    from trainoff.report.html.render import figure

    drawn: dict[str, list[Path]] = {}
    for workload in content.workloads:
        for chart in workload.charts:
            name = re.sub(r"[^\w.-]+", "-", f"{workload.name}-{chart.name}.png")
            drawn.setdefault(workload.name, []).append(figure(chart).save(pictures / name))
    console.print(f"Pictures: {sum(map(len, drawn.values()))} in {pictures}", soft_wrap=True)
    return drawn


def as_markdown(content: Content, drawn: dict[str, list[Path]], beside: Path) -> str:
    """The answer, the boards and the caveats, as they would stand in a README."""
    parts = [
        f"# {_plain(content.title)}",
        *(f"**{_plain(one)}**" for one in content.headlines),
        *([_plain(content.others)] if content.others else []),
        *(f"- {_plain(one)}" for one in (*content.assurances, *content.caveats)),
    ]
    for workload in content.workloads:
        parts += [f"## {_plain(workload.name)}", _table(workload)]
        parts += [f"![{path.stem}]({_relative(path, beside)})" for path in drawn.get(workload.name, [])]
        parts += [f"- {_plain(failed.name)}: {_plain(failed.sentence)}" for failed in workload.failures]
        parts += [f"{workload.more_failures:,} more did not end well."] if workload.more_failures else []
    parts += [f"- Cannot be read: {_plain(one)}" for one in content.damaged]
    if content.command:
        parts.append(f"Again: `{content.command}`")
    parts.append(f"Made by trainoff {content.version}, {content.made}; {content.counts}.")
    return "\n\n".join(parts) + "\n"


def _relative(path: Path, beside: Path) -> str:
    return quote(Path(os.path.relpath(path.resolve(), beside.resolve())).as_posix())


def _table(workload: WorkloadSection) -> str:
    names = [_plain(name) for name, _ in workload.board.headings]
    marks = ["---:" if figures else "---" for _, figures in workload.board.headings]
    rows: list[Sequence[str]] = [names, marks]
    rows += [[_plain(_whole(cell)) for cell in row.cells] for row in workload.board.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _whole(cell: Cell) -> str:
    return f"{cell.text} ({cell.more})" if cell.more else cell.text


def _plain(text: str) -> str:
    """Words that mean nothing to Markdown or HTML."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", flat)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it (DIR/report.html)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="also draw every chart as a picture into this folder")
    parser.add_argument("--markdown", action="store_true", help="write Markdown instead, for READMEs and papers")
    common.add_prices(parser)
    parser.add_argument(
        "--usd-per-core-hour", type=float, metavar="USD", help="what a core costs, for an axis of money"
    )


def execute(options: argparse.Namespace) -> int:
    from trainoff.cli.show import price_book

    book = price_book(options.prices, options.usd_per_core_hour)
    return write_report(options.folder, options.output, options.png, options.markdown, book, common.console())
