"""`trainoff workloads`: list the datasets with the models to train on them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trainoff import study
from trainoff.analysis.format import target_text
from trainoff.cli import common
from trainoff.cli.common import Row


def workload_rows() -> list[Row]:
    """Return a row for every workload with its recipe."""
    return [
        {"name": name, "about": workload.about, **asdict(workload), "targets": list(workload.targets)}
        for name, workload in study.workloads().items()
    ]


def print_workloads(rows: Sequence[Row], console: Console) -> None:
    for row in rows:
        targets = ", ".join(target_text(row["metric"], target) for target in row["targets"])
        console.print(Text(row["name"], style="bold"))
        for line in (row["about"], f"targets {targets}; {format_recipe(row['recipe'])}"):
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def format_recipe(recipe: Mapping[str, Any]) -> str:
    """Return a recipe in one line."""
    left_out = ("snapshot_every", "l2", "momentum")
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in recipe.items() if key not in left_out)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(workload_rows(), print_workloads, options)
