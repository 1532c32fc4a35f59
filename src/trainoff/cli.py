"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainoff import __version__
from trainoff.errors import TrainoffError

if TYPE_CHECKING:
    from rich.console import Console

    from trainoff.study import Study


ABOUT = "Train the same neural network on many training systems, and learn which one to use."


UNWRAPPED = 1000


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest command for one that does not exist."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message)
        if wrong:
            choices = re.findall(r"[\w-]+", wrong[2])
            close = difflib.get_close_matches(wrong[1], choices, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"the commands are {', '.join(choices)}"
            message = f"`{wrong[1]}` is not a command; {hint}"
        print(f"trainoff: {message}", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a problem that a person can solve is one sentence and a non-zero exit code."""
    _settle_streams()
    options = parser().parse_args(arguments)
    try:
        code: int = options.command(options)
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
    commands = top.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, function: Any, about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        one.set_defaults(command=function)
        return one

    with_json(command("doctor", doctor, "what this machine can run, and the command that brings what is missing"))
    with_json(command("engines", list_engines, "the training systems, ready or not"))
    with_json(command("workloads", list_workloads, "the datasets with the networks to train on them"))
    _add_data(command("data", data_list, "list, get and verify datasets"))
    _add_study(with_json(command("plan", plan, "the trials that would run, and how long it should take")))
    running = _add_study(with_json(command("run", run, "run what is missing of a study")))
    running.add_argument("--retry", action="append", default=[], metavar="STATUS",
                         help="run trials with this status again; `failed` stands for all that failed")  # fmt: skip
    showing = with_json(command("show", show, "the leader board of a folder of records"))
    showing.add_argument(
        "folder", type=Path, metavar="DIR", help="a study's results, such as results/quick, or one record"
    )
    showing.add_argument("--svg", type=Path, metavar="FILE", help="also draw the board as a picture")
    checking = command("check", check, "the contract tests, for authors of engines")
    checking.add_argument("engine", metavar="ENGINE", help="the engine's name, as `trainoff engines` lists it")
    return top


def _help(top: argparse.ArgumentParser) -> int:
    top.print_help()
    return 0


def with_json(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    one.add_argument("--json", action="store_true", help="for programs to read")
    return one


def _add_study(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    one.add_argument("study", type=Path, metavar="STUDY", help="a study file, such as studies/quick.toml")
    one.add_argument("--engine", action="append", default=[], metavar="E", help="only this engine; may be given again")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the study")
    one.add_argument("--repeat", type=int, metavar="N", help="repetitions, each with a seed of its own")
    one.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where results go (results)")
    return one


def _add_data(one: argparse.ArgumentParser) -> None:
    actions = one.add_subparsers(metavar="ACTION")
    listing = with_json(actions.add_parser("list", help="the datasets, and which are here"))
    listing.set_defaults(command=data_list)
    getting = actions.add_parser("get", help="bring a dataset, or your own by its path, into the cache")
    getting.add_argument("name", metavar="NAME", help="a name from `trainoff data list`, or the path of your own data")
    getting.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="a folder with the files")
    getting.add_argument("--force", action="store_true", help="get it anew even if it is here")
    getting.set_defaults(command=data_get)
    actions.add_parser("verify", help="compare every cached byte with its checksum").set_defaults(command=data_verify)
    one.set_defaults(json=False)


def doctor(options: argparse.Namespace) -> int:
    from trainoff.report.doctor import examine, tell

    facts = examine()
    print(json.dumps(facts, indent=1)) if options.json else tell(facts, console())
    return 0


def list_engines(options: argparse.Namespace) -> int:
    from trainoff.report.lists import engine_rows, print_engines

    rows = engine_rows()
    print(json.dumps(rows, indent=1)) if options.json else print_engines(rows, console())
    return 0


def list_workloads(options: argparse.Namespace) -> int:
    from trainoff.report.lists import print_workloads, workload_rows

    rows = workload_rows()
    print(json.dumps(rows, indent=1)) if options.json else print_workloads(rows, console())
    return 0


def data_list(options: argparse.Namespace) -> int:
    from trainoff.report.lists import dataset_rows, print_datasets

    rows = dataset_rows()
    print(json.dumps(rows, indent=1)) if options.json else print_datasets(rows, console())
    return 0


def data_get(options: argparse.Namespace) -> int:
    from trainoff import data
    from trainoff.report.bars import Bars

    with Bars(console()) as bars:
        got = data.get(options.name, folder=options.folder, say=bars, force=options.force)
    print(f"{got.name}: {len(got.x_train):,} + {len(got.x_test):,} rows, checksum ok")
    return 0


def data_verify(options: argparse.Namespace) -> int:
    from trainoff import data
    from trainoff.report.bars import Bars

    with Bars(console()) as bars:
        found = data.verify(bars)
    for _, _, sentence in found:
        print(sentence)
    if not found:
        print("no dataset is in the cache yet; `trainoff data get mnist` brings one")
    return 0 if all(whole for _, whole, _ in found) else 1


def plan(options: argparse.Namespace) -> int:
    from trainoff.report.planned import plan_of, tell

    planned = plan_of(_read(options), options.out)
    print(json.dumps(planned, indent=1)) if options.json else tell(planned, console())
    return 0


def run(options: argparse.Namespace) -> int:
    from trainoff.report.running import run_study
    from trainoff.report.showing import as_json

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as politely as by Ctrl-C
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    code = run_study(planned := _read(options), options.out, options.retry, console(stderr=options.json))
    if options.json:
        as_json(options.out / planned.name)
    return code


def show(options: argparse.Namespace) -> int:
    from trainoff.report.showing import as_json, draw, tell

    if options.json:
        return as_json(options.folder)
    if options.svg:
        draw(options.folder, options.svg)
    return tell(options.folder, console())


def check(options: argparse.Namespace) -> int:
    from trainoff.report.checking import check_engine

    return check_engine(options.engine, console())


def _read(options: argparse.Namespace) -> Study:
    from trainoff import engines, study

    return study.read(options.study, engines.facts(), sets=options.set, only=options.engine, repeat=options.repeat)


def console(stderr: bool = False) -> Console:
    """The terminal; where there is none, plain text that is not wrapped unless COLUMNS says so."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    wide = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else UNWRAPPED
    return Console(highlight=False, markup=False, width=wide, stderr=stderr)


if __name__ == "__main__":
    sys.exit(main())
