"""`trainoff lab`: emulated nodes on this machine, to play with."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainoff.analysis.format import size
from trainoff.cli import common

if TYPE_CHECKING:
    from rich.console import Console

NONE = "no lab is up; `trainoff lab up --nodes 3 --cores 0.2` starts one"
COLUMNS = ("node", "address", "cores", "busy", "memory", "limit", "processes", "sent", "received")


def tell_status(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The nodes of every lab, one below the other."""
    from rich.table import Table

    if not rows:
        console.print(NONE)
        return
    for lab in dict.fromkeys(row["lab"] for row in rows):
        own = [row for row in rows if row["lab"] == lab]
        console.print(f"{own[0]['about']} ({lab})" if own[0]["about"] != "lab" else f"lab ({lab})", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("node", "address") else "right")
        for row in own:
            table.add_row(*_cells(row))
        console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    limit = row["memory_limit_bytes"]
    figures = [f"{row['cores']:g}", f"{row['busy_cores']:.2f}", size(row["memory_bytes"])]
    counts = [size(limit) if limit else "none", str(row["processes"])]
    return [row["node"], row["address"], *figures, *counts, size(row["sent_bytes"]), size(row["received_bytes"])]


def tell_down(gone: Sequence[str], running: Sequence[str], console: Console) -> None:
    """What is gone, and what was left alone."""
    console.print(f"{len(gone)} lab{'s' if len(gone) != 1 else ''} removed" if gone else "no lab was up")
    for about in running:
        console.print(f"{about} is a running trial's; it goes when the trial ends")


ACTIONS = {  # what can be done to a node of a lab by hand
    "kill": "kill every process of a node",
    "pause": "let a node stand still",
    "resume": "let it go on",
    "slow": "leave a node a share of its CPU time",
    "restore": "give it back the rest",
    "cut": "cut a node from the network",
    "heal": "join it again",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION")
    starting = actions.add_parser("up", help="start a lab; it stays until `trainoff lab down`")
    starting.add_argument("--nodes", type=int, default=3, metavar="N", help="how many nodes (3)")
    starting.add_argument("--cores", type=float, metavar="C", help="CPU cores of each; equal parts by default")
    starting.add_argument("--memory-gb", type=float, metavar="GB", help="memory of each; not limited by default")
    starting.add_argument("--bandwidth-mbit", type=float, metavar="M", help="speed of each link; unlimited by default")
    starting.add_argument("--latency-ms", type=float, metavar="MS", help="delay of each link, where the kernel can")
    starting.add_argument("--machine", metavar="NAME", help="a type of machine from the catalogue, such as m4.xlarge")
    starting.add_argument("--scale", type=float, metavar="S", help="what part of that machine's cores (1)")
    starting.add_argument("--memory-scale", type=float, metavar="S", help="what part of its memory (as --scale)")
    starting.set_defaults(command=start_lab)
    common.with_json(actions.add_parser("status", help="the nodes of every lab that is up, and what they are doing"))
    entering = actions.add_parser("exec", help="run a command on a node: trainoff lab exec node-1 -- ip addr")
    entering.add_argument("--lab", metavar="LAB", help="which lab, where several are up")
    entering.add_argument("node", metavar="NODE", help="a node's name, or its number")
    entering.add_argument("words", nargs="+", metavar="COMMAND", help="what to run there")
    entering.set_defaults(command=execute_on_node)
    for action, about in ACTIONS.items():
        harming = actions.add_parser(action, help=about)
        harming.add_argument("--lab", metavar="LAB", help="which lab, where several are up")
        harming.add_argument("node", metavar="NODE", help="a node's name, or its number")
        if action == "slow":
            harming.add_argument("--share", type=float, default=0.25, metavar="S", help="the share (0.25)")
        harming.set_defaults(command=do_to_node, action=action, share=0.25)
    actions.add_parser("down", help="end the lab, and remove what crashed runs left").set_defaults(command=end_lab)
    parser.set_defaults(json=False)


def execute(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import status

    return common.print_facts(status(), tell_status, options)


def start_lab(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import memory_warning, specs_of, up

    specs = specs_of(vars(options))
    entry = up(specs)
    if warning := memory_warning(specs):
        print(warning)
    print(f"{len(entry.plan.specs)} nodes are up: {entry.plan.nodes[0].address} to {entry.plan.nodes[-1].address}")
    print("trainoff lab status        trainoff lab exec node-0 -- COMMAND        trainoff lab down")
    return 0


def execute_on_node(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import enter_command

    command = enter_command(options.node, options.words, options.lab)
    os.execvp(command[0], command)


def do_to_node(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import apply_action

    print(apply_action(options.action, options.node, options.lab, options.share))
    return 0


def end_lab(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import down

    tell_down(*down(), common.console())
    return 0
