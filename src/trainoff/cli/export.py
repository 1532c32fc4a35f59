"""`trainoff export`: write the records for other tools: tables, TensorBoard, MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainoff.cli import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_folder(parser)
    parser.add_argument("--to", required=True, choices=("csv", "parquet", "tensorboard", "mlflow"), help="format")
    parser.add_argument("-o", dest="output", type=Path, metavar="PATH", help="folder to write (DIR/export-<format>)")
    parser.add_argument("--uri", metavar="URI", help="MLflow only: tracking server instead of a folder")


def execute(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars
    from trainoff.cli.show import warn
    from trainoff.report.export import ExportOptions, export

    export_options = ExportOptions(options.folder, options.to, options.output, options.uri)
    with Bars(common.console()) as bars:
        sentences, damaged = export(export_options, bars)
    print(*sentences, sep="\n")
    return warn(damaged)
