"""`trainoff check`: run the contract tests on an engine, for authors of engines."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.text import Text

from trainoff import engines
from trainoff.analysis.format import count
from trainoff.cli import common
from trainoff.errors import TrainoffError
from trainoff.records import Store
from trainoff.runner.contract_tests import cases, check
from trainoff.runner.runner import RunObserver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="the engine's name, as `trainoff engines` lists it")


def execute(options: argparse.Namespace) -> int:
    """Run the contract tests and print each finding; the exit code is 1 if one fails."""
    name, console = options.engine, common.console()
    engine = engines.get(name)
    if missing := engine.missing():
        raise TrainoffError(f"{name} cannot be checked here: it {missing[0]}")
    total, failed = len(cases(engine)), 0
    with tempfile.TemporaryDirectory(prefix="trainoff-check-") as folder:
        for number, finding in enumerate(check(engine, Store(Path(folder)), RunObserver()), 1):
            symbol = Text("✗", "red") if finding.wrong else Text("✓", "green")
            console.print(symbol, f"{number:>3} of {total}  {finding.case}: {finding.wrong or finding.note}")
            if finding.wrong and not failed and finding.traceback:  # the first is enough
                console.print(Text(finding.traceback, "dim"))
            failed += finding.wrong is not None
    verdict = "keeps the contract" if not failed else f"breaks the contract in {count(failed, 'case')}"
    console.print(f"{name} {verdict}")
    return 1 if failed else 0
