"""clicks: a click log of any size, made from a seed: 13 numbers and 26 categories a row, hashed into columns.

Who clicks is drawn from a hidden logistic regression on the very columns of the row, so that the best that any
model can reach is known. The rows come in blocks with a seed each: a smaller log is the beginning of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainoff.data import hidden, options
from trainoff.data.dataset import Made, Progress, Recipe
from trainoff.data.fields import FIELDS, Fields, Words
from trainoff.data.fingerprint import combine
from trainoff.data.hidden import Chances, Model
from trainoff.data.sparse import Csr
from trainoff.data.spool import Spool
from trainoff.study.seeds import derive

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
    given = options.parse("clicks", text, RANGES)
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
    model = hidden.draw(fields, derive("clicks", VERSION, log.seed, "hidden"), fields.rows(sample))
    total = log.rows + log.test_rows
    x_train, y_train, _ = _draw(
        fields, model, log.seed, "train", log.rows, lambda done: say("making clicks", done, total)
    )
    x_test, y_test, chances = _draw(
        fields, model, log.seed, "test", log.test_rows, lambda done: say("making clicks", log.rows + done, total)
    )
    return Made(x_train, y_train, x_test, y_test, classes=2, facts=hidden.best(chances))


def _words(seed: int, part: str, block: int) -> Words:
    """The random words of one block: one per field and row, and one for the click."""
    rng = np.random.default_rng(derive("clicks", VERSION, seed, part, block))
    return rng.integers(0, 2**32, (FIELDS + 1, _BLOCK), np.uint32)


def _draw(
    fields: Fields, model: Model, seed: int, part: str, rows: int, say: Callable[[int], None]
) -> tuple[Csr, NDArray[np.uint8], Chances]:
    """The rows of one part, who clicked, and with which chance they did."""
    spool, labels, chances = Spool(), np.empty(rows, np.uint8), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        here = slice(start, min(start + _BLOCK, rows))
        words = _words(seed, part, start // _BLOCK)[:, : here.stop - start]
        block = fields.rows(words[:-1])
        chances[here] = hidden.chances(model.scores(block))
        labels[here] = words[-1] < chances[here] * 2.0**32
        spool.add(block.kept.sum(axis=1), block.columns[block.kept], block.values[block.kept])
        say(here.stop)
    return spool.rows(fields.width), labels, chances
