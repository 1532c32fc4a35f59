"""What several commands share: their arguments, the terminal, and the two ways to print."""

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


def with_json(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    one.add_argument("--json", action="store_true", help="for programs to read")
    return one


def add_folder(one: argparse.ArgumentParser) -> None:
    about = "a study's results, such as results/quick, one record, or published:NAME"
    one.add_argument("folder", type=Path, metavar="DIR", help=about)


def add_study(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_choice(one).add_argument("--repeat", type=int, metavar="N", help="repetitions, each with a seed of its own")
    return one


def add_choice(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """A study, and what of it."""
    one.add_argument("study", type=Path, metavar="STUDY", help="a study file, such as studies/quick.toml")
    one.add_argument("--engine", action="append", default=[], metavar="E", help="only this engine; may be given again")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the study")
    one.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where results go (results)")
    return one


def add_prices(one: argparse.ArgumentParser) -> None:
    one.add_argument("--prices", type=Path, metavar="FILE", help="a price book, in the place of the prices on record")


def read_study(options: argparse.Namespace) -> Study:
    from trainoff import engines, study

    return study.read(options.study, engines.facts(), overrides=options.set, only=options.engine, repeat=options.repeat)


def print_facts(facts: Any, show: Callable[[Any, Console], object], options: argparse.Namespace) -> int:
    """For programs to read, or for a person."""
    print(json.dumps(facts, indent=1)) if options.json else show(facts, console())
    return 0


def end_politely() -> None:
    """Let other signals end it as Ctrl-C does, but for those that the user has it ignore, as nohup does."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)


def console(stderr: bool = False) -> Console:
    """The terminal; where there is none, plain text that is not wrapped unless COLUMNS says so."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    wide = None if terminal else int(columns) if columns.isdecimal() else UNWRAPPED
    return Console(highlight=False, markup=False, width=wide, stderr=stderr)


def plain_table(*headings: str) -> Table:
    """A table without lines, the last column taking what room is left."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1])
    return table
