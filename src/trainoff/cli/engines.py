"""`trainoff engines`: list the training systems, and which are ready."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

from trainoff import engines
from trainoff.cli import common
from trainoff.cli.common import Row, plain_table


def engine_rows() -> list[Row]:
    """Return a row for every engine; that of an unavailable one has the command that installs it."""
    return [_engine_row(engines.broken_or(name)) for name in engines.names()]


def _engine_row(engine: engines.Engine) -> Row:
    missing = engine.missing()
    return {
        "name": engine.name,
        "status": "unavailable" if missing else "ready",
        "reason": str(missing[0]) if missing else None,
        "version": None if missing else engines.version_of(engine),
        "models": sorted(engine.models),
        "modes": list(engine.modes),
        "distributed": engine.distributed,
        "about": engine.about,
        "knobs": {name: knob.about for name, knob in engine.knobs.items()},
    }


def print_engines(rows: Sequence[Row], console: Console) -> None:
    table = plain_table("engine", "status", "version", "modes", "models", "description")
    for row in rows:
        style = None if row["status"] == "ready" else "dim"
        description = row["about"] if row["status"] == "ready" else row["reason"]
        modes, models = ", ".join(row["modes"]), ", ".join(row["models"])
        table.add_row(row["name"], row["status"], row["version"] or "-", modes, models, description, style=style)
    console.print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(engine_rows(), print_engines, options)
