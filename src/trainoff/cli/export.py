"""`trainoff export`: the records for other tools: tables, TensorBoard, MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainoff.cli import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(parser)
    parser.add_argument("--to", required=True, choices=("csv", "parquet", "tensorboard", "mlflow"), help="the format")
    parser.add_argument("-o", dest="place", type=Path, metavar="PATH", help="the folder to write (DIR/export-<format>)")
    parser.add_argument("--uri", metavar="URI", help="mlflow only: a tracking server instead of a folder")


def execute(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars
    from trainoff.cli.show import warn
    from trainoff.report.export import ExportOptions, export

    asked = ExportOptions(options.folder, options.to, options.place, options.uri)
    with Bars(common.console()) as bars:
        told, damaged = export(asked, bars)
    print(*told, sep="\n")
    return warn(damaged)
