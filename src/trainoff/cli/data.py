"""`trainoff data`: list, get and verify datasets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainoff import data
from trainoff.analysis.format import size
from trainoff.cli import common
from trainoff.cli.common import Row, plain_table

if TYPE_CHECKING:
    from rich.console import Console


def dataset_rows() -> list[Row]:
    """Every dataset, and whether it is in the cache."""
    return [
        {
            "name": entry.name,
            "about": entry.about,
            "train_rows": entry.train_rows,
            "test_rows": entry.test_rows,
            "features": entry.features,
            "classes": entry.classes,
            "bytes": entry.bytes,
            "cached": entry.cached,
        }
        for entry in data.catalogue()
    ]


def print_datasets(rows: Sequence[Row], console: Console) -> None:
    table = plain_table("dataset", "here", "rows", "features", "size", "what it is")
    for row in rows:
        rows_told = f"{row['train_rows']:,} + {row['test_rows']:,}"
        here = "yes" if row["cached"] else "no"
        table.add_row(row["name"], here, rows_told, str(row["features"]), size(row["bytes"]), row["about"])
    console.print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION")
    listing = common.with_json(actions.add_parser("list", help="the datasets, and which are here"))
    listing.set_defaults(command=list_datasets)
    getting = actions.add_parser("get", help="bring a dataset, or your own by its path, into the cache")
    getting.add_argument("name", metavar="NAME", help="a name from `trainoff data list`, or the path of your own data")
    getting.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="a folder with the files")
    getting.add_argument("--force", action="store_true", help="get it anew even if it is here")
    getting.set_defaults(command=get_dataset)
    actions.add_parser("verify", help="compare every cached byte with its checksum").set_defaults(
        command=verify_datasets
    )
    parser.set_defaults(json=False)


def execute(options: argparse.Namespace) -> int:
    return list_datasets(options)


def list_datasets(options: argparse.Namespace) -> int:
    return common.print_facts(dataset_rows(), print_datasets, options)


def get_dataset(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars

    with Bars(common.console()) as bars:
        got = data.get(options.name, folder=options.folder, say=bars, force=options.force)
    print(f"{got.name}: {len(got.x_train):,} + {len(got.x_test):,} rows, checksum ok")
    return 0


def verify_datasets(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars

    with Bars(common.console()) as bars:
        found = data.verify(bars)
    for _, _, sentence in found:
        print(sentence)
    if not found:
        print("no dataset is in the cache yet; `trainoff data get mnist` brings one")
    return 0 if all(whole for _, whole, _ in found) else 1
