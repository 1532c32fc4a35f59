"""The fields of the click log made here: 13 numeric and 26 categorical ones, drawn as whole numbers from tables.

Nothing but look-ups and exact arithmetic happens to a row, so that every machine makes the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, log1p
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainoff.data.hashing import columns_of

NUMBERS = (  # of each numeric field the median, the spread of its logarithm, and how many of a thousand are missing
    (3, 1.2, 150), (40, 1.5, 0), (12, 1.4, 120), (6, 0.9, 100), (2500, 2.0, 20), (90, 1.6, 150), (8, 1.5, 30),
    (11, 0.9, 0), (70, 1.3, 30), (5, 0.7, 200), (4, 1.0, 30), (6, 0.9, 250), (9, 1.1, 100),
)  # fmt: skip
CATEGORIES = (  # of each categorical field how many there are, and how many of a thousand rows have none
    (1_400, 0), (550, 0), (400_000, 30), (200_000, 30), (300, 0), (24, 100), (12_000, 0), (600, 0), (3, 0),
    (90_000, 0), (5_500, 0), (350_000, 30), (3_000, 0), (27, 0), (15_000, 0), (300_000, 30), (10, 0), (5_000, 0),
    (2_000, 60), (4, 60), (320_000, 30), (18, 150), (15, 0), (150_000, 30), (100, 60), (60_000, 60),
)  # fmt: skip
FIELDS = len(NUMBERS) + len(CATEGORIES)
_EVEN = 2.0  # the k-th category of a field, counted from 0, has a share of about 1 / (k + _EVEN)
_QUANTILES = 4096  # the values that a numeric field takes

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Block:
    """Some rows with a place for every field: [rows, fields]. Where nothing is to be kept, the field is missing."""

    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    kept: NDArray[np.bool_]


class Fields:
    """The tables of all fields. A number has a column of its own, the categories share the others by hashing."""

    def __init__(self, width: int) -> None:
        self.width = width
        normal = [NormalDist().inv_cdf((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)]
        self._numbers = [_number_table(normal, *field) for field in NUMBERS]
        self._ends = [_ends(*field) for field in CATEGORIES]
        self.columns = [self._column_table(field) for field in range(len(CATEGORIES))]  # the last is: none

    def _column_table(self, field: int) -> NDArray[np.int32]:
        categories = np.arange(CATEGORIES[field][0], dtype=np.uint64)
        columns = columns_of(np.array([field]), categories, len(NUMBERS), self.width)
        return np.append(columns, np.int32(self.width))

    def rows(self, words: Words) -> Block:
        """The rows that random words give: one word per field and row, [fields, rows]."""
        numbers = len(NUMBERS)
        values = np.ones(words.shape[::-1], np.float32)
        columns = np.empty(words.shape[::-1], np.int32)
        columns[:, :numbers] = np.arange(numbers)
        for field, numbers_of in enumerate(self._numbers):
            values[:, field] = numbers_of[words[field] // np.uint32(2**32 // _QUANTILES)]
        for field, (ends, table) in enumerate(zip(self._ends, self.columns, strict=True), numbers):
            columns[:, field] = table[np.searchsorted(ends, words[field], "right")]
        columns[:, numbers:].sort(axis=1)
        kept = (values > 0) & (columns < self.width)
        kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]  # two categories of a row in one column count as one
        return Block(columns, values, kept)


def _number_table(normal: list[float], median: int, spread: float, missing: int) -> NDArray[np.float32]:
    """A value for each quantile: whole numbers, spread log-normally, as log(1 + x) in [0, 1]; 0 where missing.

    The values are multiples of 1/4096, which leaves no digits in which machines might differ.
    """
    present = _QUANTILES * (1000 - missing) // 1000
    whole = [round(exp(log(median) + spread * normal[place * _QUANTILES // present])) for place in range(present)]
    largest = max(whole)
    values = [round(4096 * log1p(number) / log1p(largest)) / 4096 for number in whole]
    return np.array(values + [0.0] * (_QUANTILES - present), np.float32)


def _ends(categories: int, missing: int) -> Words:
    """Up to which word each category goes; the words above the last mean that there is none."""
    shares = np.cumsum(1 / (np.arange(categories) + _EVEN))
    largest = 2**32 - 1 if not missing else 2**32 // 1000 * (1000 - missing)
    ends: Words = np.floor(shares / shares[-1] * largest).astype(np.uint32)
    return ends
