"""clicks: a click log of any size, generated from a seed: 13 numbers and 26 categories a row, hashed into columns.

Clicks are drawn from a logistic regression on the columns of the row, so that the best result of any model is known.
Rows come in blocks with a seed each, so that a smaller log is the beginning of a larger one.
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
from trainoff.data.dataset import Csr, DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.data.text import columns_of
from trainoff.study.study import derive

VERSION = 1
ABOUT = "a click log made here, 13 numbers and 26 categories a row"
NONZEROS = 37.0  # of a row, about
RANGES = {"rows": (1000, 10**9), "test_rows": (100, 10**9), "bits": (10, 24), "seed": (0, 2**31)}
_BLOCK = 8192  # rows per seed
_SAMPLE = 4  # blocks on which the click model is calibrated


@dataclass(frozen=True)
class ClickLog:
    """The parameters of a click log."""

    rows: int = 200_000
    test_rows: int = 50_000
    bits: int = 18
    seed: int = 1

    @property
    def name(self) -> str:
        """Return the shortest name of the log."""
        usual = {"rows": ClickLog.rows, "test_rows": self.rows // 4, "bits": ClickLog.bits, "seed": ClickLog.seed}
        options = [f"{key}={getattr(self, key)}" for key, value in usual.items() if getattr(self, key) != value]
        return f"clicks:{','.join(options)}" if options else "clicks"

    @property
    def identity(self) -> str:
        return combine("clicks", VERSION, *astuple(self))


def log_of(text: str = "") -> ClickLog:
    """Return the click log with the options behind its name."""
    given = dataset.parse_options("clicks", text, RANGES)
    return ClickLog(**{"test_rows": given.get("rows", ClickLog.rows) // 4, **given})


def recipe(text: str = "") -> DatasetRecipe:
    """Return the recipe of a click log with the options behind its name."""
    log = log_of(text)
    key = "clicks" if log == ClickLog() else f"clicks-{log.identity[:16]}"
    return DatasetRecipe(log.name, log.name, key, log.identity, partial(make, log))


def make(log: ClickLog, folder: Path | None, progress: Progress) -> RawDataset:
    """Generate the rows of both parts; no files are needed."""
    progress("preparing clicks", 0, None)
    fields = Fields(1 << log.bits)
    sample = np.concatenate([_draws(log.seed, "model", block)[:-1] for block in range(_SAMPLE)], axis=1)
    model = make_click_model(fields, derive("clicks", VERSION, log.seed, "hidden"), fields.rows(sample))
    total = log.rows + log.test_rows
    x_train, y_train, _ = _draw(
        fields, model, log.seed, "train", log.rows, lambda done: progress("making clicks", done, total)
    )
    x_test, y_test, probabilities = _draw(
        fields, model, log.seed, "test", log.test_rows, lambda done: progress("making clicks", log.rows + done, total)
    )
    return RawDataset(x_train, y_train, x_test, y_test, classes=2, facts=best_metrics(probabilities))


def _draws(seed: int, part: str, block: int) -> Draws:
    """Return the random numbers of one block: one per field and row, and one for the click."""
    rng = np.random.default_rng(derive("clicks", VERSION, seed, part, block))
    return rng.integers(0, 2**32, (FIELDS + 1, _BLOCK), np.uint32)


def _draw(
    fields: Fields, model: ClickModel, seed: int, part: str, rows: int, progress: Callable[[int], None]
) -> tuple[Csr, NDArray[np.uint8], Probabilities]:
    """Return the rows of one part, their clicks, and the probabilities of these."""
    spool, labels, probabilities = Spool(), np.empty(rows, np.uint8), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        here = slice(start, min(start + _BLOCK, rows))
        draws = _draws(seed, part, start // _BLOCK)[:, : here.stop - start]
        block = fields.rows(draws[:-1])
        probabilities[here] = click_probabilities(model.scores(block))
        labels[here] = draws[-1] < probabilities[here] * 2.0**32
        spool.add(block.kept.sum(axis=1), block.columns[block.kept], block.values[block.kept])
        progress(here.stop)
    return spool.rows(fields.width), labels, probabilities


NUMBERS = (  # of each numeric field the median, the deviation of its logarithm, and how many of a thousand are missing
    (3, 1.2, 150), (40, 1.5, 0), (12, 1.4, 120), (6, 0.9, 100), (2500, 2.0, 20), (90, 1.6, 150), (8, 1.5, 30),
    (11, 0.9, 0), (70, 1.3, 30), (5, 0.7, 200), (4, 1.0, 30), (6, 0.9, 250), (9, 1.1, 100),
)  # fmt: skip
CATEGORIES = (  # of each categorical field how many there are, and how many of a thousand rows have none
    (1_400, 0), (550, 0), (400_000, 30), (200_000, 30), (300, 0), (24, 100), (12_000, 0), (600, 0), (3, 0),
    (90_000, 0), (5_500, 0), (350_000, 30), (3_000, 0), (27, 0), (15_000, 0), (300_000, 30), (10, 0), (5_000, 0),
    (2_000, 60), (4, 60), (320_000, 30), (18, 150), (15, 0), (150_000, 30), (100, 60), (60_000, 60),
)  # fmt: skip
FIELDS = len(NUMBERS) + len(CATEGORIES)
_RANK_OFFSET = 2.0  # the k-th category of a field, counted from 0, has a share of about 1 / (k + _RANK_OFFSET)
_QUANTILES = 4096  # the number of values of a numeric field

Draws = NDArray[np.uint32]


@dataclass(frozen=True)
class Block:
    """Some rows as arrays of [rows, fields]; fields that are not `kept` are missing."""

    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    kept: NDArray[np.bool_]


class Fields:
    """The tables of all fields. Each number has a column; the categories share the others by hashing."""

    def __init__(self, width: int) -> None:
        self.width = width
        normal = [NormalDist().inv_cdf((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)]
        self._numbers = [_number_table(normal, *field) for field in NUMBERS]
        self._ends = [_ends(*field) for field in CATEGORIES]
        self.columns = []  # of the categories of each field, and the width for a missing one
        for field, (count, _) in enumerate(CATEGORIES):
            columns = columns_of(np.array([field]), np.arange(count, dtype=np.uint64), len(NUMBERS), width)
            self.columns.append(np.append(columns, np.int32(width)))

    def rows(self, draws: Draws) -> Block:
        """Return the rows for random draws of [fields, rows]."""
        numbers = len(NUMBERS)
        values = np.ones(draws.shape[::-1], np.float32)
        columns = np.empty(draws.shape[::-1], np.int32)
        columns[:, :numbers] = np.arange(numbers)
        for field, numbers_of in enumerate(self._numbers):
            values[:, field] = numbers_of[draws[field] // np.uint32(2**32 // _QUANTILES)]
        for field, (ends, table) in enumerate(zip(self._ends, self.columns, strict=True), numbers):
            columns[:, field] = table[np.searchsorted(ends, draws[field], "right")]
        columns[:, numbers:].sort(axis=1)
        kept = (values > 0) & (columns < self.width)
        kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]  # two categories of a row in one column count as one
        return Block(columns, values, kept)


def _number_table(normal: list[float], median: int, spread: float, missing: int) -> NDArray[np.float32]:
    """Return a value for each quantile: log-normal whole numbers, as log(1 + x) in [0, 1]; 0 where missing.

    The values are multiples of 1/4096, so that all machines agree on them.
    """
    present = _QUANTILES * (1000 - missing) // 1000
    whole = [round(exp(log(median) + spread * normal[place * _QUANTILES // present])) for place in range(present)]
    largest = max(whole)
    values = [round(4096 * log1p(number) / log1p(largest)) / 4096 for number in whole]
    return np.array(values + [0.0] * (_QUANTILES - present), np.float32)


def _ends(categories: int, missing: int) -> Draws:
    """Return the upper bound of the draws of each category; draws above the last mean a missing field."""
    shares = np.cumsum(1 / (np.arange(categories) + _RANK_OFFSET))
    largest = 2**32 - 1 if not missing else 2**32 // 1000 * (1000 - missing)
    ends: Draws = np.floor(shares / shares[-1] * largest).astype(np.uint32)
    return ends


CLICKS = 0.25  # the share of rows with a click
BEST_ERROR = 0.165  # of the click model itself
_FREQUENT = 500  # categories of each field that have a weight, the most frequent ones
_NUMBER_WEIGHT = 2.0  # the largest weight of a number; that of a category is 1
_BISECTIONS = 40

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class ClickModel:
    """A logistic regression on the columns of a row; column `width` stands for a missing field and has weight 0."""

    weights: NDArray[np.float32]
    bias: float

    def scores(self, block: Block) -> Probabilities:
        """Return the log-odds of a click, summed field by field, in the same order on all machines."""
        total = np.full(len(block.columns), self.bias)
        for field in range(block.columns.shape[1]):
            weights = self.weights[block.columns[:, field]] * block.kept[:, field]
            total += weights.astype(np.float64) * block.values[:, field]
        return total


def click_probabilities(scores: Probabilities) -> Probabilities:
    """Return the probability of a click."""
    result: Probabilities = 1 / (1 + np.exp(-scores))
    return result


def make_click_model(fields: Fields, seed: int, rows: Block) -> ClickModel:
    """Return a random model with the error BEST_ERROR and the share CLICKS of clicks on the given rows."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(fields.width + 1)
    numbers = len(NUMBERS)
    weights[:numbers] = _NUMBER_WEIGHT * rng.uniform(0.5, 1, numbers) * np.where(rng.random(numbers) < 0.5, -1, 1)
    for columns in fields.columns:
        frequent = columns[:-1][:_FREQUENT]
        np.add.at(weights, frequent, rng.uniform(-1, 1, len(frequent)))
    weights = np.rint(weights * 4096) / 4096
    plain = ClickModel(weights.astype(np.float32), 0.0).scores(rows)
    strength = _bisect(0, 16, lambda by: _error(by * plain) < BEST_ERROR)
    strength = round(strength * 4096) / 4096  # few digits, so that all machines agree
    bias = round(_bias(strength * plain) * 4096) / 4096
    return ClickModel((weights * strength).astype(np.float32), bias)


def _bisect(low: float, high: float, too_high: Callable[[float], bool]) -> float:
    """Return the number between two at which a condition begins to hold."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_high(middle) else (middle, high)
    return low


def _bias(scores: Probabilities) -> float:
    return _bisect(-50, 50, lambda bias: float(click_probabilities(scores + bias).mean()) > CLICKS)


def _error(scores: Probabilities) -> float:
    p = click_probabilities(scores + _bias(scores))
    return float(np.minimum(p, 1 - p).mean())


def best_metrics(p: Probabilities) -> dict[str, float]:
    """Return the expected metrics of the click model itself on rows with these probabilities of a click."""
    error = np.minimum(p, 1 - p).mean()
    log_loss = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    clicks = np.sort(p)
    others = 1 - clicks
    below = np.cumsum(others) - others / 2  # the expected non-clicks with a lower score; a row counts half for itself
    auc = (clicks * below).sum() / (clicks.sum() * others.sum())
    named = {"best_error": error, "best_log_loss": log_loss, "best_auc": auc}
    return {name: round(float(value), 6) for name, value in named.items()}


def entry(log: ClickLog) -> DatasetEntry:
    """Return the catalogue entry of a click log."""
    return DatasetEntry(log.name, f"{ABOUT}; sparse", log.rows, log.test_rows, 1 << log.bits, 2, nonzeros=NONZEROS)


ENTRY = entry(ClickLog())
RECIPE = recipe()
