"""`trainoff doctor`: what this machine can run, and the command that brings what is missing."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from trainoff.cli import common
from trainoff.cli.data import dataset_rows
from trainoff.cli.engines import engine_rows
from trainoff.clusters import namespaces
from trainoff.clusters.lab import register
from trainoff.runner import machine

if TYPE_CHECKING:
    from rich.console import Console


def examine() -> dict[str, Any]:
    """Everything that decides what runs here."""
    why_not = namespaces.why_not()
    return {
        "machine": {**machine.environment(), "gpu": machine.gpu(), "ssh": machine.ssh(), "root": os.geteuid() == 0},
        "isolation": {"namespaces": why_not is None, "reason": why_not},
        "lab": {
            "ready": why_not is None and register.missing() is None,
            "reason": why_not or register.missing(),
        },
        "engines": engine_rows(),
        "datasets": [{"name": row["name"], "cached": row["cached"]} for row in dataset_rows()],
    }


def tell(facts: dict[str, Any], console: Console) -> None:
    """The examination in a dozen lines."""
    from rich.table import Table
    from rich.text import Text

    here, isolation = facts["machine"], facts["isolation"]
    rows = [
        (
            "machine",
            f"{here['cpus']} cores ({here['cpu']}), {here['memory_bytes'] / 2**30:.0f} GiB, {here['system']}",
        ),
        ("python", here["python"]),
        ("java", here["java"] or f"none; only engines on Spark need it: {machine.INSTALL_JAVA}"),
        ("gpu", here["gpu"] or "none"),
        ("ssh", here["ssh"] or f"none; only clusters of the kind hosts need it: {machine.INSTALL_SSH}"),
        ("cgroups", here["cgroup"] or "none"),
        ("namespaces", _namespaces(isolation)),
        ("lab", f"no: {facts['lab']['reason']}" if facts["lab"]["reason"] else "yes: nodes can be emulated"),
        ("datasets", ", ".join(row["name"] for row in facts["datasets"] if row["cached"]) or "none yet"),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    for engine in facts["engines"]:
        ready = engine["status"] == "ready"
        mark = Text("✓ ", "green") if ready else Text("- ", "yellow")
        table.add_row(mark + engine["name"], Text(engine["version"] if ready else engine["reason"]))
    console.print(table)


def _namespaces(isolation: dict[str, Any]) -> str:
    if isolation["namespaces"]:
        return "yes: every trial has its own processes and network"
    return f"no ({isolation['reason']}): trials run as process groups, network bytes are not counted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(examine(), tell, options)
