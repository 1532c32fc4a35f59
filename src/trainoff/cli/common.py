"""Arguments, the terminal and the output that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainoff.study import Study

UNWRAPPED = 1000
Row = dict[str, Any]


def with_json(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def add_folder(parser: argparse.ArgumentParser) -> None:
    about = "results of a study, such as results/quick, one record, or published:NAME"
    parser.add_argument("folder", type=Path, metavar="DIR", help=about)


def add_study(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add a study, and the options that select and override parts of it."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="study file, such as studies/quick.toml")
    parser.add_argument("--engine", action="append", default=[], metavar="E", help="only this engine; repeatable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the study")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder for results (results)")
    return parser


def add_repeat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, metavar="N", help="run every trial N times, each with another seed")


def add_prices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prices", type=Path, metavar="FILE", help="price book to use instead of the recorded prices")


def read_study(options: argparse.Namespace) -> Study:
    from trainoff import engines, study

    return study.read(options.study, engines.facts(), overrides=options.set, only=options.engine, repeat=options.repeat)


def print_facts(facts: Any, show: Callable[[Any, Console], object], options: argparse.Namespace) -> int:
    """Print facts as JSON if `--json` is given, else by `show`."""
    print(json.dumps(facts, indent=1)) if options.json else show(facts, console())
    return 0


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP stop the command as Ctrl-C does, unless they are ignored, as under nohup."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)


def console(stderr: bool = False) -> Console:
    """Return the terminal; outside one, plain text that is wrapped only if COLUMNS is set."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else int(columns) if columns.isdecimal() else UNWRAPPED
    return Console(highlight=False, markup=False, width=width, stderr=stderr)


def plain_table(*headings: str) -> Table:
    """Return a table without lines, whose last column takes the remaining width."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1])
    return table
