"""clicks: a click log of any size, made from a seed: 13 numbers and 26 categories a row, hashed into columns.

Who clicks is drawn from a hidden logistic regression on the very columns of the row, so that the best that any
model can reach is known. The rows come in blocks with a seed each: a smaller log is the beginning of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from math import exp, log, log1p
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainoff.data import dataset
from trainoff.data.cache import Spool, combine
from trainoff.data.dataset import Csr, Made, Progress, Recipe
from trainoff.data.text import columns_of
from trainoff.study.study import derive

VERSION = 1
NONZEROS = 37.0  # of a row, about
RANGES = {"rows": (1000, 10**9), "test_rows": (100, 10**9), "bits": (10, 24), "seed": (0, 2**31)}
_BLOCK = 8192  # rows with a seed of their own
_SAMPLE = 4  # blocks on which the hidden model is made as strong as it should be


@dataclass(frozen=True)
class Log:
    """What a click log is made from."""

    rows: int = 200_000
    test_rows: int = 50_000
    bits: int = 18
    seed: int = 1

    @property
    def name(self) -> str:
        """The shortest name by which it can be asked for."""
        usual = {"rows": Log.rows, "test_rows": _quarter(self.rows), "bits": Log.bits, "seed": Log.seed}
        told = [f"{key}={getattr(self, key)}" for key, value in usual.items() if getattr(self, key) != value]
        return f"clicks:{','.join(told)}" if told else "clicks"

    @property
    def identity(self) -> str:
        return combine("clicks", VERSION, *astuple(self))


def _quarter(rows: int) -> int:
    return rows // 4


def log_of(text: str = "") -> Log:
    """The click log with the options that stand behind its name."""
    given = dataset.parse_options("clicks", text, RANGES)
    return Log(**{"test_rows": _quarter(given.get("rows", Log.rows)), **given})


def recipe(text: str = "") -> Recipe:
    """The recipe of a click log, with the options that stand behind its name."""
    log = log_of(text)
    key = "clicks" if log == Log() else f"clicks-{log.identity[:16]}"
    return Recipe(log.name, log.name, key, log.identity, partial(make, log))


def make(log: Log, folder: Path | None, say: Progress) -> Made:
    """Draw the rows of both parts; no files are needed."""
    say("preparing clicks", 0, None)
    fields = Fields(1 << log.bits)
    sample = np.concatenate([_words(log.seed, "model", block)[:-1] for block in range(_SAMPLE)], axis=1)
    model = draw_click_model(fields, derive("clicks", VERSION, log.seed, "hidden"), fields.rows(sample))
    total = log.rows + log.test_rows
    x_train, y_train, _ = _draw(
        fields, model, log.seed, "train", log.rows, lambda done: say("making clicks", done, total)
    )
    x_test, y_test, chances = _draw(
        fields, model, log.seed, "test", log.test_rows, lambda done: say("making clicks", log.rows + done, total)
    )
    return Made(x_train, y_train, x_test, y_test, classes=2, facts=best_possible(chances))


def _words(seed: int, part: str, block: int) -> Words:
    """The random words of one block: one per field and row, and one for the click."""
    rng = np.random.default_rng(derive("clicks", VERSION, seed, part, block))
    return rng.integers(0, 2**32, (FIELDS + 1, _BLOCK), np.uint32)


def _draw(
    fields: Fields, model: ClickModel, seed: int, part: str, rows: int, say: Callable[[int], None]
) -> tuple[Csr, NDArray[np.uint8], Chances]:
    """The rows of one part, who clicked, and with which chance they did."""
    spool, labels, chances = Spool(), np.empty(rows, np.uint8), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        here = slice(start, min(start + _BLOCK, rows))
        words = _words(seed, part, start // _BLOCK)[:, : here.stop - start]
        block = fields.rows(words[:-1])
        chances[here] = click_chances(model.scores(block))
        labels[here] = words[-1] < chances[here] * 2.0**32
        spool.add(block.kept.sum(axis=1), block.columns[block.kept], block.values[block.kept])
        say(here.stop)
    return spool.rows(fields.width), labels, chances


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


CLICKS = 0.25  # the share of rows with a click
BEST_ERROR = 0.165  # of who knows the hidden model
_FREQUENT = 500  # so many categories of each field have a say, the most frequent ones
_OF_NUMBERS = 2.0  # how much more a number may weigh than a category
_HALVINGS = 40

Chances = NDArray[np.float64]


@dataclass(frozen=True)
class ClickModel:
    """A logistic regression on the columns of a row; column `width` stands for nothing and weighs nothing."""

    weights: NDArray[np.float32]
    bias: float

    def scores(self, block: Block) -> Chances:
        """The log-odds of a click, summed field by field, in an order that is the same everywhere."""
        total = np.full(len(block.columns), self.bias)
        for field in range(block.columns.shape[1]):
            weights = self.weights[block.columns[:, field]] * block.kept[:, field]
            total += weights.astype(np.float64) * block.values[:, field]
        return total


def click_chances(scores: Chances) -> Chances:
    """The chance of a click."""
    result: Chances = 1 / (1 + np.exp(-scores))
    return result


def draw_click_model(fields: Fields, seed: int, rows: Block) -> ClickModel:
    """A model drawn by the seed, made as strong as BEST_ERROR asks, for a share of CLICKS, on the rows given."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(fields.width + 1)
    numbers = len(NUMBERS)
    weights[:numbers] = _OF_NUMBERS * rng.uniform(0.5, 1, numbers) * np.where(rng.random(numbers) < 0.5, -1, 1)
    for columns in fields.columns:
        frequent = columns[:-1][:_FREQUENT]
        np.add.at(weights, frequent, rng.uniform(-1, 1, len(frequent)))
    weights = np.rint(weights * 4096) / 4096
    plain = ClickModel(weights.astype(np.float32), 0.0).scores(rows)
    strength = _halved(0, 16, lambda by: _error(by * plain) < BEST_ERROR)
    strength = round(strength * 4096) / 4096  # a few digits, on which all machines agree
    bias = round(_bias(strength * plain) * 4096) / 4096
    return ClickModel((weights * strength).astype(np.float32), bias)


def _halved(low: float, high: float, too_high: Callable[[float], bool]) -> float:
    """Where between two numbers a condition begins to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_high(middle) else (middle, high)
    return low


def _bias(scores: Chances) -> float:
    return _halved(-50, 50, lambda bias: float(click_chances(scores + bias).mean()) > CLICKS)


def _error(scores: Chances) -> float:
    p = click_chances(scores + _bias(scores))
    return float(np.minimum(p, 1 - p).mean())


def best_possible(p: Chances) -> dict[str, float]:
    """What the hidden model itself is expected to reach on rows with these chances of a click."""
    error = np.minimum(p, 1 - p).mean()
    log_loss = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    clicks = np.sort(p)
    others = 1 - clicks
    below = np.cumsum(others) - others / 2  # how many without a click score lower; a row counts half for itself
    auc = (clicks * below).sum() / (clicks.sum() * others.sum())
    named = {"best_error": error, "best_log_loss": log_loss, "best_auc": auc}
    return {name: round(float(value), 6) for name, value in named.items()}
