"""`trainoff view`: the same in the browser, live while a study runs."""

from __future__ import annotations

import argparse
import os
import signal
from functools import partial
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a study's results; it need not be there yet")
    parser.add_argument("--port", type=int, metavar="N", help="the port (8650, or another that is free)")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                     help="an address that others can reach; they need the token that is printed")  # fmt: skip
    parser.add_argument("--token", action="store_true", help="ask for a token on this machine, too")
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")


def execute(options: argparse.Namespace) -> int:
    from trainoff.report.live import ViewOptions, serve

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.nice(10)  # whatever is being timed comes first
    asked = ViewOptions(options.folder, options.host, options.port, options.token, not options.no_browser)
    serve(asked, partial(print, flush=True))
    return 0
