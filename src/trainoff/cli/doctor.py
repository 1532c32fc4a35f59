"""`trainoff doctor`: show what this machine can run, and how to install what is missing."""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainoff.cli import common
from trainoff.cli.data import dataset_rows
from trainoff.cli.engines import engine_rows
from trainoff.clusters import java, namespaces
from trainoff.clusters.lab import register
from trainoff.clusters.ssh import client
from trainoff.runner import machine


def examine() -> dict[str, Any]:
    """Return the facts that decide which trials can run here."""
    reason = namespaces.why_not()
    return {
        "machine": {**machine.environment(), "gpu": machine.gpu(), "ssh": machine.ssh(), "root": os.geteuid() == 0},
        "isolation": {"namespaces": reason is None, "reason": reason},
        "lab": {"ready": reason is None and register.missing() is None, "reason": reason or register.missing()},
        "engines": engine_rows(),
        "datasets": [{"name": row["name"], "cached": row["cached"]} for row in dataset_rows()],
    }


def print_findings(facts: dict[str, Any], console: Console) -> None:
    """Print the facts, a line each."""
    this, isolation = facts["machine"], facts["isolation"]
    namespaced = "yes: every trial runs in its own process and network namespace"
    processes = f"no ({isolation['reason']}): trials run as process groups, and network bytes are not counted"
    rows = [
        ("machine", f"{this['cpus']} cores ({this['cpu']}), {this['memory_bytes'] / 2**30:.0f} GiB, {this['system']}"),
        ("python", this["python"]),
        ("java", this["java"] or f"none (only engines on Spark need it): {java.INSTALL}"),
        ("gpu", this["gpu"] or "none"),
        ("ssh", this["ssh"] or f"none (only clusters of the kind hosts need it): {client.INSTALL}"),
        ("cgroups", this["cgroup"] or "none"),
        ("namespaces", namespaced if isolation["namespaces"] else processes),
        ("lab", f"no: {facts['lab']['reason']}" if facts["lab"]["reason"] else "yes: this machine can emulate nodes"),
        ("datasets", ", ".join(row["name"] for row in facts["datasets"] if row["cached"]) or "none yet"),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    for engine in facts["engines"]:
        ready = engine["status"] == "ready"
        symbol = Text("✓ ", "green") if ready else Text("- ", "yellow")
        table.add_row(symbol + engine["name"], Text(engine["version"] if ready else engine["reason"]))
    console.print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.with_json(parser)


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(examine(), print_findings, options)
