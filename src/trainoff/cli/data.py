"""`trainoff data`: list, download and verify datasets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trainoff import data
from trainoff.analysis.format import size
from trainoff.cli import common
from trainoff.cli.common import Row, plain_table


def dataset_rows() -> list[Row]:
    """Return a row for every dataset with its size, and whether it is cached."""
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
    table = plain_table("dataset", "cached", "rows", "features", "size", "description")
    for row in rows:
        number_of_rows = f"{row['train_rows']:,} + {row['test_rows']:,}"
        cached = "yes" if row["cached"] else "no"
        table.add_row(row["name"], cached, number_of_rows, str(row["features"]), size(row["bytes"]), row["about"])
    console.print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION")
    listing = common.with_json(actions.add_parser("list", help="list the datasets, and which are cached"))
    listing.set_defaults(command=execute)
    getting = actions.add_parser("get", help="download a dataset, or read your own data, into the cache")
    getting.add_argument("name", metavar="NAME", help="name of a dataset, or path of your own data")
    getting.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="folder that has the files already")
    getting.add_argument("--force", action="store_true", help="replace a cached dataset")
    getting.set_defaults(command=get_dataset)
    verifying = actions.add_parser("verify", help="compare every cached byte with its checksum")
    verifying.set_defaults(command=verify_datasets)
    parser.set_defaults(json=False)


def execute(options: argparse.Namespace) -> int:
    return common.print_facts(dataset_rows(), print_datasets, options)


def get_dataset(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars

    with Bars(common.console()) as bars:
        dataset = data.get(options.name, folder=options.folder, progress=bars, force=options.force)
    print(f"{dataset.name}: {len(dataset.x_train):,} + {len(dataset.x_test):,} rows, checksum ok")
    return 0


def verify_datasets(options: argparse.Namespace) -> int:
    from trainoff.cli.run import Bars

    with Bars(common.console()) as bars:
        results = data.verify(bars)
    for _, _, sentence in results:
        print(sentence)
    if not results:
        print("no dataset is cached yet; `trainoff data get mnist` downloads one")
    return 0 if all(intact for _, intact, _ in results) else 1
