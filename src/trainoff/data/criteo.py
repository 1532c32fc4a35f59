"""Criteo's click logs: a label, 13 whole numbers and 26 categories a line, separated by tabs; any cell may be empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainoff.data import clicklog, text
from trainoff.data.dataset import Progress
from trainoff.data.sparse import Csr
from trainoff.errors import TrainoffError

NUMBERS, CATEGORIES = range(1, 14), range(14, 40)  # their places in a line; the label is at 0
_COLUMNS = 40


def check(path: Path) -> None:
    """Refuse a file whose first line is not of that format."""
    line = text.first_line(path)
    found = line.count(b"\t") + 1 if line else 0
    if found != _COLUMNS:
        raise TrainoffError(
            f"{path} is not a click log like Criteo's: its first line has {found} columns separated by tabs, not "
            f"{_COLUMNS} (a label, {len(NUMBERS)} whole numbers, {len(CATEGORIES)} categories)"
        )


def read(path: Path, width: int, say: Progress) -> tuple[Csr, NDArray[np.int64]]:
    """The rows as log(1 + x) of the numbers, below 0 as 0, in columns 0 to 12, and categories hashed into the others.

    An empty cell gives no entry, and neither does a number of 0.
    """
    return clicklog.gather(_parts(path, width, say), width)


def _parts(path: Path, width: int, say: Progress) -> Iterator[clicklog.Part]:
    for table in text.tables(path, b"\t", _COLUMNS, say):
        numbers, _ = table.whole_numbers(NUMBERS)
        logs = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
        yield clicklog.labels(table, 0), logs, *clicklog.categories(table, CATEGORIES, len(NUMBERS), width)
