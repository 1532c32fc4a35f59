"""What each command calls, and what it prints: no logic here either."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from trainoff.study import Study

UNWRAPPED = 1000


def doctor(options: argparse.Namespace) -> int:
    from trainoff.cli.doctor import examine, tell

    return _tell(examine(), tell, options)


def list_engines(options: argparse.Namespace) -> int:
    from trainoff.cli.lists import engine_rows, print_engines

    return _tell(engine_rows(), print_engines, options)


def list_workloads(options: argparse.Namespace) -> int:
    from trainoff.cli.lists import print_workloads, workload_rows

    return _tell(workload_rows(), print_workloads, options)


def data_list(options: argparse.Namespace) -> int:
    from trainoff.cli.lists import dataset_rows, print_datasets

    return _tell(dataset_rows(), print_datasets, options)


def data_get(options: argparse.Namespace) -> int:
    from trainoff import data
    from trainoff.cli.run import Bars

    with Bars(console()) as bars:
        got = data.get(options.name, folder=options.folder, say=bars, force=options.force)
    print(f"{got.name}: {len(got.x_train):,} + {len(got.x_test):,} rows, checksum ok")
    return 0


def data_verify(options: argparse.Namespace) -> int:
    from trainoff import data
    from trainoff.cli.run import Bars

    with Bars(console()) as bars:
        found = data.verify(bars)
    for _, _, sentence in found:
        print(sentence)
    if not found:
        print("no dataset is in the cache yet; `trainoff data get mnist` brings one")
    return 0 if all(whole for _, whole, _ in found) else 1


def plan(options: argparse.Namespace) -> int:
    from trainoff.cli.plan import plan_of, tell

    return _tell(plan_of(_read(options), options.out), tell, options)


def run(options: argparse.Namespace) -> int:
    from trainoff.cli.run import run_study
    from trainoff.cli.show import as_json

    _end_politely()
    code = run_study(planned := _read(options), options.out, options.retry, console(stderr=options.json))
    if options.json:
        as_json(options.out / planned.name)
    return code


def tune(options: argparse.Namespace) -> int:
    from trainoff.cli.tune import tune_study
    from trainoff.tuning import TuneOptions

    _end_politely()
    wish = TuneOptions(options.minutes, options.target, options.candidates, options.rounds)
    return tune_study(_read(options), options.out, wish, options.output, console(stderr=options.json), options.json)


def show(options: argparse.Namespace) -> int:
    from trainoff.cli.show import as_json, book_of, draw, tell

    book = book_of(options.prices, None)
    if options.svg:
        draw(options.folder, options.svg, book)
    if options.json:
        return as_json(options.folder, book)
    return tell(options.folder, console(), book)


def report(options: argparse.Namespace) -> int:
    from trainoff.cli.report import write_report
    from trainoff.cli.show import book_of

    book = book_of(options.prices, options.usd_per_core_hour)
    return write_report(options.folder, options.output, options.png, options.markdown, book, console())


def compare(options: argparse.Namespace) -> int:
    from trainoff.cli.compare import CompareOptions, compare_folders

    question = CompareOptions(options.folders, options.engines, options.figure, options.target)
    return compare_folders(question, options.json, console())


def scale(options: argparse.Namespace) -> int:
    from trainoff.cli.scale import ScaleOptions
    from trainoff.cli.scale import scale as answer

    asked = options.at, options.hold_out, options.minutes, options.figure, options.target
    return answer(ScaleOptions(options.folder, *asked), options.json, console())


def advise(options: argparse.Namespace) -> int:
    from trainoff.analysis.advice import AdviceFilter, AdviceLimits
    from trainoff.cli.advise import AdviseOptions
    from trainoff.cli.advise import advise as answer
    from trainoff.cli.show import book_of

    wish = AdviceFilter(options.engine, options.nodes, options.cores, options.machine, options.rows)
    limits = AdviceLimits(options.max_seconds, options.max_cost)
    question = AdviseOptions(options.folder, options.target, limits, wish, options.cold, options.workload)
    return answer(question, book_of(options.prices, None), options.json, console())


def view(options: argparse.Namespace) -> int:
    from functools import partial

    from trainoff.report.live import ViewOptions, serve

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.nice(10)  # whatever is being timed comes first
    wish = ViewOptions(options.folder, options.host, options.port, options.token, not options.no_browser)
    serve(wish, partial(print, flush=True))
    return 0


def export(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars
    from trainoff.cli.show import warn
    from trainoff.report.export import ExportOptions
    from trainoff.report.export import export as write

    with Bars(console()) as bars:
        told, damaged = write(ExportOptions(options.folder, options.to, options.place, options.uri), bars)
    print(*told, sep="\n")
    return warn(damaged)


def sql(options: argparse.Namespace) -> int:
    from trainoff.cli.sql import as_json, tell

    if options.json:
        return as_json(options.folder, options.question)
    return tell(options.folder, options.question, console())


def lab_up(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import crowded, specs_of, up

    specs = specs_of(vars(options))
    entry = up(specs)
    if warning := crowded(specs):
        print(warning)
    print(f"{len(entry.plan.specs)} nodes are up: {entry.plan.nodes[0].address} to {entry.plan.nodes[-1].address}")
    print("trainoff lab status        trainoff lab exec node-0 -- COMMAND        trainoff lab down")
    return 0


def lab_status(options: argparse.Namespace) -> int:
    from trainoff.cli.lab import tell_status
    from trainoff.runner.lab.manage import status

    return _tell(status(), tell_status, options)


def lab_exec(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import enter

    command = enter(options.node, options.words, options.lab)
    os.execvp(command[0], command)


def lab_harm(options: argparse.Namespace) -> int:
    from trainoff.runner.lab.manage import do

    print(do(options.action, options.node, options.lab, options.share))
    return 0


def lab_down(options: argparse.Namespace) -> int:
    from trainoff.cli.lab import tell_down
    from trainoff.runner.lab.manage import down

    tell_down(*down(), console())
    return 0


def reproduce(options: argparse.Namespace) -> int:
    from trainoff.cli.reproduce import as_json, listing, reproduce, tell_names
    from trainoff.cli.show import warn

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.name is None:
        return _tell(listing(), tell_names, options)
    told = console(stderr=options.json)
    judged, damaged = reproduce(options.name, options.out, options.page, options.only_judge, told)
    if options.json:
        print(json.dumps(as_json(judged), indent=1))
    return warn(damaged)


def check(options: argparse.Namespace) -> int:
    from trainoff.cli.check import check_engine

    return check_engine(options.engine, console())


def _tell(facts: Any, show: Callable[[Any, Console], object], options: argparse.Namespace) -> int:
    """For programs to read, or for a person."""
    print(json.dumps(facts, indent=1)) if options.json else show(facts, console())
    return 0


def _end_politely() -> None:
    """Let other signals end it as Ctrl-C does, but for those that the user has it ignore, as nohup does."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)


def _read(options: argparse.Namespace) -> Study:
    from trainoff import engines, study

    return study.read(options.study, engines.facts(), sets=options.set, only=options.engine, repeat=options.repeat)


def console(stderr: bool = False) -> Console:
    """The terminal; where there is none, plain text that is not wrapped unless COLUMNS says so."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    wide = None if terminal else int(columns) if columns.isdecimal() else UNWRAPPED
    return Console(highlight=False, markup=False, width=wide, stderr=stderr)
