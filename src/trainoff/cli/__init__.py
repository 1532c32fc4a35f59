"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainoff import __version__, commands
from trainoff.errors import TrainoffError

HARM = {  # what can be done to a node of a lab by hand
    "kill": "kill every process of a node",
    "pause": "let a node stand still",
    "resume": "let it go on",
    "slow": "leave a node a share of its CPU time",
    "restore": "give it back the rest",
    "cut": "cut a node from the network",
    "heal": "join it again",
}
ABOUT = "Train the same neural network on many training systems, and learn which one to use."


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest command or value for one that does not exist."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"argument (\S+): invalid choice: '(.+?)' \(choose from (.+)\)", message)
        if wrong:
            choices = re.findall(r"[\w-]+", wrong[3])
            close = difflib.get_close_matches(wrong[2], choices, 1)
            what = f"value of {wrong[1]}" if wrong[1].startswith("-") else "command"
            hint = f"did you mean `{close[0]}`?" if close else f"the {what.split()[0]}s are {', '.join(choices)}"
            message = f"`{wrong[2]}` is not a {what}; {hint}"
        elif wrong := re.search(r"argument ([^\s:]+): invalid (int|float) value: '(.*)'", message):
            message = f"{wrong[1]} {wrong[3]}: expected a {'whole ' if wrong[2] == 'int' else ''}number"
        elif wrong := re.search(r"argument (\S+): expected (one|\d+|at least one) arguments?", message):
            message = f"{wrong[1]} lacks its value; `{self.prog} --help` says what it takes"
        elif wrong := re.search(r"arguments are required: (.+)", message):
            message = f"{wrong[1]} is missing; `{self.prog} --help` says what it is"
        print(f"trainoff: {message}", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a problem that a person can solve is one sentence and a non-zero exit code."""
    _settle_streams()
    options = parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()  # here, where a closed pipe is no error
        return code
    except TrainoffError as error:
        print(f"trainoff: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ntrainoff: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("TRAINOFF_DEBUG"):
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"trainoff: this should not happen: {told}; with TRAINOFF_DEBUG=1 it says where", file=sys.stderr)
        return 3


def _settle_streams() -> None:
    """Write to nowhere where there is no output, and a `?` where a terminal knows no `·`; never a traceback."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def parser() -> argparse.ArgumentParser:
    """The commands in the order in which one uses them."""
    top = Parser(prog="trainoff", description=ABOUT)
    top.set_defaults(command=lambda options: _help(top))
    top.add_argument("--version", action="version", version=f"trainoff {__version__}")
    known = top.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, function: Any, about: str) -> argparse.ArgumentParser:
        one = known.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        one.set_defaults(command=function)
        return one

    with_json(
        command("doctor", commands.doctor, "what this machine can run, and the command that brings what is missing")
    )
    with_json(command("engines", commands.list_engines, "the training systems, ready or not"))
    with_json(command("workloads", commands.list_workloads, "the datasets with the networks to train on them"))
    _add_data(command("data", commands.data_list, "list, get and verify datasets"))
    _add_study(with_json(command("plan", commands.plan, "the trials that would run, and how long it should take")))
    running = _add_study(with_json(command("run", commands.run, "run what is missing of a study")))
    running.add_argument("--retry", action="append", default=[], metavar="STATUS",
                         help="run trials with this status again; `failed` stands for all that failed")  # fmt: skip
    _add_tune(with_json(command("tune", commands.tune, "each engine at its best: search its own parameters")))
    showing = with_json(command("show", commands.show, "the leader board of a folder of records"))
    _add_folder(showing)
    _add_prices(showing)
    showing.add_argument("--svg", type=Path, metavar="FILE", help="also draw the board as a picture")
    _add_report(command("report", commands.report, "one HTML file with all of it, for the browser, without a network"))
    _add_compare(with_json(command("compare", commands.compare, "two folders, or two engines of one, with verdicts")))
    _add_scale(with_json(command("scale", commands.scale, "how time goes with the nodes, and what others would bring")))
    _add_advise(with_json(command("advise", commands.advise, "what to use for a target, how sure that is, and why")))
    _add_view(command("view", commands.view, "the same in the browser, live while a study runs"))
    _add_export(command("export", commands.export, "the records for other tools: tables, TensorBoard, MLflow"))
    asking = with_json(command("sql", commands.sql, "a question to the tables `records`, `curves` and `samples`"))
    _add_folder(asking)
    asking.add_argument("question", metavar="QUESTION", help='such as "select engine, train_s from records"')
    _add_reproduce(
        with_json(command("reproduce", commands.reproduce, "a published study, run here, beside its published figures"))
    )
    _add_lab(command("lab", commands.lab_status, "emulated nodes on this machine, to play with"))
    checking = command("check", commands.check, "the contract tests, for authors of engines")
    checking.add_argument("engine", metavar="ENGINE", help="the engine's name, as `trainoff engines` lists it")
    return top


def _help(top: argparse.ArgumentParser) -> int:
    top.print_help()
    return 0


def with_json(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    one.add_argument("--json", action="store_true", help="for programs to read")
    return one


def _add_folder(one: argparse.ArgumentParser) -> None:
    about = "a study's results, such as results/quick, one record, or published:NAME"
    one.add_argument("folder", type=Path, metavar="DIR", help=about)


def _add_study(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    _add_choice(one).add_argument("--repeat", type=int, metavar="N", help="repetitions, each with a seed of its own")
    return one


def _add_choice(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """A study, and what of it."""
    one.add_argument("study", type=Path, metavar="STUDY", help="a study file, such as studies/quick.toml")
    one.add_argument("--engine", action="append", default=[], metavar="E", help="only this engine; may be given again")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the study")
    one.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where results go (results)")
    return one


def _add_tune(one: argparse.ArgumentParser) -> None:
    _add_choice(one).set_defaults(repeat=None)
    one.add_argument("--minutes", type=float, required=True, metavar="M", help="how long it may take, all engines")
    one.add_argument("--target", type=float, metavar="T", help="what to tune for (the hardest that a recipe reaches)")
    one.add_argument("--candidates", type=int, metavar="N", help="try at most so many of each engine")
    one.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of the race at the end (5; fewer prove nothing)"
    )
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help="the study file to write (STUDY-tuned.toml)")


def _add_report(one: argparse.ArgumentParser) -> None:
    _add_folder(one)
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it (DIR/report.html)")
    one.add_argument("--png", type=Path, metavar="DIR", help="also draw every chart as a picture into this folder")
    one.add_argument("--markdown", action="store_true", help="write Markdown instead, for READMEs and papers")
    _add_prices(one)
    one.add_argument("--usd-per-core-hour", type=float, metavar="USD", help="what a core costs, for an axis of money")


def _add_prices(one: argparse.ArgumentParser) -> None:
    one.add_argument("--prices", type=Path, metavar="FILE", help="a price book, in the place of the prices on record")


def _add_compare(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="results, or published:NAME; a second is compared with it"
    )
    one.add_argument("--engines", nargs=2, default=[], metavar=("A", "B"), help="compare these; else all with the best")
    others = "train_s, cold_s, cpu_s, peak_memory_bytes, network_bytes, cost_usd, samples_per_s"
    one.add_argument(
        "--figure", default="time_to_target", metavar="NAME", help=f"what to compare by (time_to_target); also {others}"
    )
    one.add_argument("--target", type=float, metavar="T", help="the target to be timed; the headline target by default")


def _add_scale(one: argparse.ArgumentParser) -> None:
    _add_folder(one)
    one.add_argument("--at", nargs="+", default=[], metavar="N", help="predict so many nodes (twice the most measured)")
    one.add_argument(
        "--minutes", type=float, metavar="M", help="also say which runs of so many minutes would help most"
    )
    one.add_argument("--hold-out", nargs="+", default=[], metavar="N", help="keep these from the model and grade it so")
    one.add_argument("--figure", default="train_s", choices=("train_s", "cold_s", "per_1000_samples"),
                     help="the time to model (train_s)")  # fmt: skip
    one.add_argument("--target", type=float, metavar="T", help="model the time to this target instead")


def _add_advise(one: argparse.ArgumentParser) -> None:
    _add_folder(one)
    one.add_argument(
        "--target", type=float, metavar="T", help="how good it must become; the headline target by default"
    )
    one.add_argument(
        "--max-seconds", type=float, metavar="S", help="be there in time; by the cheapest way, with prices"
    )
    one.add_argument("--max-cost", type=float, metavar="USD", help="be there for at most so many dollars")
    _add_prices(one)
    one.add_argument("--cold", action="store_true", help="count start and end, too, and not the training alone")
    one.add_argument("--workload", metavar="NAME", help="which, where there are records of several")
    one.add_argument("--engine", metavar="E", help="only this engine")
    one.add_argument("--nodes", type=int, metavar="N", help="so many nodes, run or not")
    one.add_argument("--cores", type=float, metavar="C", help="nodes of so many cores")
    one.add_argument("--machine", metavar="NAME", help="nodes of this type")
    one.add_argument("--rows", type=float, metavar="R", help="so many rows to train on, run or not")


def _add_view(one: argparse.ArgumentParser) -> None:
    one.add_argument("folder", type=Path, metavar="DIR", help="a study's results; it need not be there yet")
    one.add_argument("--port", type=int, metavar="N", help="the port (8650, or another that is free)")
    one.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                     help="an address that others can reach; they need the token that is printed")  # fmt: skip
    one.add_argument("--token", action="store_true", help="ask for a token on this machine, too")
    one.add_argument("--no-browser", action="store_true", help="do not open the browser")


def _add_export(one: argparse.ArgumentParser) -> None:
    _add_folder(one)
    one.add_argument("--to", required=True, choices=("csv", "parquet", "tensorboard", "mlflow"), help="the format")
    one.add_argument("-o", dest="place", type=Path, metavar="PATH", help="the folder to write (DIR/export-<format>)")
    one.add_argument("--uri", metavar="URI", help="mlflow only: a tracking server instead of a folder")


def _add_data(one: argparse.ArgumentParser) -> None:
    actions = one.add_subparsers(metavar="ACTION")
    listing = with_json(actions.add_parser("list", help="the datasets, and which are here"))
    listing.set_defaults(command=commands.data_list)
    getting = actions.add_parser("get", help="bring a dataset, or your own by its path, into the cache")
    getting.add_argument("name", metavar="NAME", help="a name from `trainoff data list`, or the path of your own data")
    getting.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="a folder with the files")
    getting.add_argument("--force", action="store_true", help="get it anew even if it is here")
    getting.set_defaults(command=commands.data_get)
    actions.add_parser("verify", help="compare every cached byte with its checksum").set_defaults(
        command=commands.data_verify
    )
    one.set_defaults(json=False)


def _add_reproduce(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", nargs="?", metavar="NAME", help="which; without it, the list of them")
    one.add_argument("--out", type=Path, default=Path("results/reproduce"), metavar="DIR",
                     help="where results go (results/reproduce)")  # fmt: skip
    one.add_argument("--page", type=Path, metavar="FILE", help="where its page goes (reproduction.md, by the records)")
    one.add_argument("--only-judge", action="store_true", help="run nothing: judge by the records that are there")


def _add_lab(one: argparse.ArgumentParser) -> None:
    actions = one.add_subparsers(metavar="ACTION")
    starting = actions.add_parser("up", help="start a lab; it stays until `trainoff lab down`")
    starting.add_argument("--nodes", type=int, default=3, metavar="N", help="how many nodes (3)")
    starting.add_argument("--cores", type=float, metavar="C", help="CPU cores of each; equal parts by default")
    starting.add_argument("--memory-gb", type=float, metavar="GB", help="memory of each; not limited by default")
    starting.add_argument("--bandwidth-mbit", type=float, metavar="M", help="speed of each link; unlimited by default")
    starting.add_argument("--latency-ms", type=float, metavar="MS", help="delay of each link, where the kernel can")
    starting.add_argument("--machine", metavar="NAME", help="a type of machine from the catalogue, such as m4.xlarge")
    starting.add_argument("--scale", type=float, metavar="S", help="what part of that machine's cores (1)")
    starting.add_argument("--memory-scale", type=float, metavar="S", help="what part of its memory (as --scale)")
    starting.set_defaults(command=commands.lab_up)
    with_json(actions.add_parser("status", help="the nodes of every lab that is up, and what they are doing"))
    entering = actions.add_parser("exec", help="run a command on a node: trainoff lab exec node-1 -- ip addr")
    entering.add_argument("--lab", metavar="LAB", help="which lab, where several are up")
    entering.add_argument("node", metavar="NODE", help="a node's name, or its number")
    entering.add_argument("words", nargs="+", metavar="COMMAND", help="what to run there")
    entering.set_defaults(command=commands.lab_exec)
    for action, about in HARM.items():
        harming = actions.add_parser(action, help=about)
        harming.add_argument("--lab", metavar="LAB", help="which lab, where several are up")
        harming.add_argument("node", metavar="NODE", help="a node's name, or its number")
        if action == "slow":
            harming.add_argument("--share", type=float, default=0.25, metavar="S", help="the share (0.25)")
        harming.set_defaults(command=commands.lab_harm, action=action, share=0.25)
    actions.add_parser("down", help="end the lab, and remove what crashed runs left").set_defaults(
        command=commands.lab_down
    )
    one.set_defaults(json=False)
