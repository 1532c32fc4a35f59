"""The lists: engines, workloads, datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainoff import data, engines, study
from trainoff.analysis.format import mark, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = dict[str, Any]


def engine_rows() -> list[Row]:
    """Every engine with its status; `unavailable` comes with the command that changes it."""
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
    table = plain_table("engine", "status", "version", "modes", "models", "what it is")
    for row in rows:
        style = None if row["status"] == "ready" else "dim"
        told = row["about"] if row["status"] == "ready" else row["reason"]
        modes, models = ", ".join(row["modes"]), ", ".join(row["models"])
        table.add_row(row["name"], row["status"], row["version"] or "-", modes, models, told, style=style)
    console.print(table)


def workload_rows() -> list[Row]:
    """Every workload with its recipe."""
    return [
        {
            "name": name,
            "about": workload.about,
            "data": workload.data,
            "model": workload.model,
            "metric": workload.metric,
            "targets": list(workload.targets),
            "recipe": dict(workload.recipe),
            "stale": dict(workload.stale),
        }
        for name, workload in study.workloads().items()
    ]


def print_workloads(rows: Sequence[Row], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for row in rows:
        targets = ", ".join(mark(row["metric"], target) for target in row["targets"])
        console.print(Text(row["name"], style="bold"))
        for line in (row["about"], f"targets {targets}; {recipe_line(row['recipe'])}"):
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def recipe_line(recipe: Mapping[str, Any]) -> str:
    """A recipe in one line."""
    left_out = ("snapshot_every", "l2", "momentum")
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in recipe.items() if key not in left_out)


def dataset_rows() -> list[Row]:
    """Every dataset, and whether it is in the cache."""
    return [
        {
            "name": entry.name,
            "about": entry.about,
            "train_rows": entry.train_rows,
            "test_rows": entry.test_rows,
            "features": entry.features,
            "classes": entry.classes,
            "bytes": entry.bytes,
            "cached": entry.cached,
        }
        for entry in data.catalogue()
    ]


def print_datasets(rows: Sequence[Row], console: Console) -> None:
    table = plain_table("dataset", "here", "rows", "features", "size", "what it is")
    for row in rows:
        rows_told = f"{row['train_rows']:,} + {row['test_rows']:,}"
        here = "yes" if row["cached"] else "no"
        table.add_row(row["name"], here, rows_told, str(row["features"]), size(row["bytes"]), row["about"])
    console.print(table)


def plain_table(*headings: str) -> Table:
    """A table without lines, the last column taking what room is left."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1])
    return table
