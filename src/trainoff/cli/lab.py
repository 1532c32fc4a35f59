"""`trainoff lab`: start and control emulated nodes on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from trainoff.analysis.format import count, size
from trainoff.cli import common

NO_LAB = "no lab is up; `trainoff lab up --nodes 3 --cores 0.2` starts one"
COLUMNS = ("node", "address", "cores", "busy", "memory", "limit", "processes", "sent", "received")


def print_status(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table of nodes for every lab."""
    if not rows:
        console.print(NO_LAB)
        return
    for lab in dict.fromkeys(row["lab"] for row in rows):
        nodes = [row for row in rows if row["lab"] == lab]
        console.print(f"{nodes[0]['about']} ({lab})", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("node", "address") else "right")
        for row in nodes:
            table.add_row(*_cells(row))
        console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    limit = row["memory_limit_bytes"]
    figures = [f"{row['cores']:g}", f"{row['busy_cores']:.2f}", size(row["memory_bytes"])]
    counts = [size(limit) if limit else "none", str(row["processes"])]
    return [row["node"], row["address"], *figures, *counts, size(row["sent_bytes"]), size(row["received_bytes"])]


ACTIONS = {  # on a node of a lab
    "kill": "kill every process of a node",
    "pause": "pause every process of a node",
    "resume": "resume a paused node",
    "slow": "limit a node to a share of its CPU time",
    "restore": "lift the limit of `slow`",
    "cut": "disconnect a node from the network",
    "heal": "connect a node again",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION")
    starting = actions.add_parser("up", help="start a lab, which runs until `trainoff lab down`")
    add = starting.add_argument
    add("--nodes", type=int, default=3, metavar="N", help="number of nodes (3)")
    add("--cores", type=float, metavar="C", help="CPU cores of each node (equal parts)")
    add("--memory-gb", type=float, metavar="GB", help="memory of each node (not limited)")
    add("--bandwidth-mbit", type=float, metavar="M", help="bandwidth of each link (not limited)")
    add("--latency-ms", type=float, metavar="MS", help="delay of each link, if the kernel can")
    add("--machine", metavar="NAME", help="machine type of each node, such as m4.xlarge")
    add("--scale", type=float, metavar="S", help="share of the machine's cores (1)")
    add("--memory-scale", type=float, metavar="S", help="share of its memory (as --scale)")
    starting.set_defaults(command=start_lab)
    common.with_json(actions.add_parser("status", help="list the nodes of every lab, and their load"))
    entering = actions.add_parser("exec", help="run a command on a node: trainoff lab exec node-1 -- ip addr")
    entering.add_argument("--lab", metavar="LAB", help="lab, if several are up")
    entering.add_argument("node", metavar="NODE", help="name or number of a node")
    entering.add_argument("argv", nargs="+", metavar="COMMAND", help="command to run")
    entering.set_defaults(command=execute_on_node)
    for action, about in ACTIONS.items():
        acting = actions.add_parser(action, help=about)
        acting.add_argument("--lab", metavar="LAB", help="lab, if several are up")
        acting.add_argument("node", metavar="NODE", help="name or number of a node")
        if action == "slow":
            acting.add_argument("--share", type=float, default=0.25, metavar="S", help="share of the CPU time (0.25)")
        acting.set_defaults(command=act_on_node, action=action, share=0.25)
    actions.add_parser("down", help="stop the lab, and remove the rest of crashed runs").set_defaults(command=stop_lab)
    parser.set_defaults(json=False)


def execute(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import status

    return common.print_facts(status(), print_status, options)


def start_lab(options: argparse.Namespace) -> int:
    import psutil

    from trainoff.clusters.lab.register import too_much_memory
    from trainoff.runner.lab.manage import specs_of, up

    specs = specs_of(vars(options))
    entry = up(specs)
    if warning := too_much_memory(specs, psutil.virtual_memory().total):
        print(warning)
    print(f"{len(entry.plan.specs)} nodes are up: {entry.plan.nodes[0].address} to {entry.plan.nodes[-1].address}")
    print("trainoff lab status        trainoff lab exec node-0 -- COMMAND        trainoff lab down")
    return 0


def execute_on_node(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import enter_command

    command = enter_command(options.node, options.argv, options.lab)
    os.execvp(command[0], command)


def act_on_node(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import apply_action

    print(apply_action(options.action, options.node, options.lab, options.share))
    return 0


def stop_lab(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import down

    removed, running = down()
    print(f"{count(len(removed), 'lab')} removed" if removed else "no lab was up")
    for about in running:
        print(f"{about} belongs to a running trial and ends with it")
    return 0
