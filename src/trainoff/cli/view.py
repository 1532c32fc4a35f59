"""`trainoff view`: show results in the browser, live while a study runs."""

from __future__ import annotations

import argparse
import os
import signal
from functools import partial
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="results of a study; the folder need not exist yet")
    parser.add_argument("--port", type=int, metavar="N", help="port (8650, or else a free one)")
    about = "address that other machines can reach; they need the printed token"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=about)
    parser.add_argument("--token", action="store_true", help="require the token on this machine, too")
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")


def execute(options: argparse.Namespace) -> int:
    from trainoff.report.live import ViewOptions, serve

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.nice(10)  # a running trial has priority
    view_options = ViewOptions(options.folder, options.host, options.port, options.token, not options.no_browser)
    serve(view_options, partial(print, flush=True))
    return 0
