"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainoff import __version__
from trainoff.errors import TrainoffError

COMMANDS = (  # in the order in which one uses them; each is the module of its name
    *("doctor", "engines", "workloads", "data", "plan", "run", "tune", "show", "report", "compare", "scale", "advise"),
    *("view", "export", "sql", "reproduce", "lab", "check"),
)
ABOUT = "Train the same neural network on many training systems, and learn which one to use."


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence that names the nearest command or value."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._given: set[argparse.Action] = set()

    def error(self, message: str) -> NoReturn:
        missing = ", ".join(_name(one) for one in self._actions if one.required and one not in self._given)
        if missing and message.endswith(missing):
            message = f"{missing} is missing; `{self.prog} --help` says what it is"
        print(f"trainoff: {message}", file=sys.stderr)
        sys.exit(2)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        self._given.add(action)
        return super()._get_values(action, arg_strings)

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            self.error(f"{_name(action)} lacks its value; `{self.prog} --help` says what it takes")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            expected = "a whole number" if action.type is int else "a number"
            self.error(f"{_name(action)} {_escape(arg_string)}: expected {expected}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(action.choices)
        close = difflib.get_close_matches(value, choices, 1)
        noun = "value" if action.option_strings else "command"
        what = f"value of {_name(action)}" if action.option_strings else noun
        hint = f"did you mean `{close[0]}`?" if close else f"the {noun}s are {', '.join(choices)}"
        self.error(f"`{_escape(value)}` is not a {what}; {hint}")


def _name(action: argparse.Action) -> str:
    """Return the name of an argument as argparse's own messages have it."""
    return str(argparse.ArgumentError(action, "").argument_name)


def _escape(text: str) -> str:
    """Return a text on one line, without control characters."""
    return repr(text)[1:-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error that the user can solve is one sentence and a non-zero exit code."""
    _settle_streams()
    given = sys.argv[1:] if arguments is None else arguments
    try:  # the import of a command takes long enough for a Ctrl-C
        options = parser(only=next((one for one in given if not one.startswith("-")), "")).parse_args(given)
        code: int = options.command(options)
        sys.stdout.flush()  # here, where a closed pipe is no error
        return code
    except TrainoffError as error:
        print(f"trainoff: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ntrainoff: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("TRAINOFF_DEBUG"):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"trainoff: this should not happen: {text}; with TRAINOFF_DEBUG=1 it shows where", file=sys.stderr)
        return 3


def _settle_streams() -> None:
    """Discard output without a stream, and replace characters that the terminal does not have."""
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
    """Return what a command does: the first line of its module, which is not imported."""
    with Path(__file__).with_name(f"{name}.py").open(encoding="utf-8") as module:
        return module.readline().partition(": ")[2].rstrip().removesuffix('"""').rstrip(".")


def _help(top: argparse.ArgumentParser) -> int:
    top.print_help()
    return 0
