"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from trainoff import __version__
from trainoff.errors import TrainoffError

COMMANDS = (  # in the order in which one uses them; each is the module of its name
    *("doctor", "engines", "workloads", "data", "plan", "run", "tune", "show", "report", "compare", "scale", "advise"),
    *("view", "export", "sql", "reproduce", "lab", "check"),
)
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
    given = sys.argv[1:] if arguments is None else arguments
    try:  # from here on: to import a command takes long enough for a Ctrl-C
        options = parser(only=next((word for word in given if not word.startswith("-")), "")).parse_args(given)
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


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser: of every command, or with the arguments of one alone, so that no other is imported."""
    top = Parser(prog="trainoff", description=ABOUT)
    top.set_defaults(command=lambda options: _help(top))
    top.add_argument("--version", action="version", version=f"trainoff {__version__}")
    known = top.add_subparsers(metavar="COMMAND", title="commands")
    for name in COMMANDS:
        about = _about(name)
        one = known.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        if only in (None, name):
            module = importlib.import_module(f"trainoff.cli.{name}")
            module.add_arguments(one)
            one.set_defaults(command=module.execute)
    return top


def _about(name: str) -> str:
    """Return what a command does: the first line of its module, which is not imported for it."""
    with Path(__file__).with_name(f"{name}.py").open(encoding="utf-8") as module:
        return module.readline().partition(": ")[2].rstrip().removesuffix('"""').rstrip(".")


def _help(top: argparse.ArgumentParser) -> int:
    top.print_help()
    return 0
