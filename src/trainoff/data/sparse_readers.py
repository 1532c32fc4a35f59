"""Readers of users' sparse files: click logs and svmlight files, distinguished by name and first line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import bandit, text
from trainoff.data.cache import Spool
from trainoff.data.dataset import Csr, Progress, Ranges
from trainoff.errors import TrainoffError

NUMBERS, CATEGORIES = range(1, 14), range(14, 40)  # their columns in a line; the label is at 0
_COLUMNS = 40


def check_criteo(path: Path) -> None:
    """Raise an error if the first line of a file is not of Criteo's format."""
    line = text.first_line(path)
    found = line.count(b"\t") + 1 if line else 0
    if found != _COLUMNS:
        raise TrainoffError(
            f"{path} is not a click log like Criteo's: its first line has {found} columns separated by tabs, not "
            f"{_COLUMNS} (a label, {len(NUMBERS)} whole numbers, {len(CATEGORIES)} categories)"
        )


def read_criteo(path: Path, width: int, progress: Progress) -> tuple[Csr, NDArray[np.int64]]:
    """Return the rows: log(1 + x) of the numbers, at least 0, in columns 0 to 12, and hashed categories in the others.

    Empty cells and zeros have no entry.
    """

    def parts() -> Iterator[text.Part]:
        for table in text.tables(path, b"\t", _COLUMNS, progress):
            numbers, _ = table.whole_numbers(NUMBERS)
            logs = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
            yield text.click_labels(table, 0), logs, *text.hash_categories(table, CATEGORIES, len(NUMBERS), width)

    return text.gather_rows(parts(), width)


SUFFIXES = (".tsv", ".txt", ".svm", ".svmlight", ".libsvm")  # each also with .gz
BITS = 18  # categories are hashed into 2 ** BITS columns, unless `:bits=` behind the path says otherwise


@dataclass(frozen=True)
class Format:
    """The reader of one format: from (path, number of columns, progress) to rows and labels."""

    read: Callable[[Path, int, Progress], tuple[Csr, NDArray[Any]]]
    options: Ranges


_HASHED: Ranges = {"bits": (10, 28)}


def suffix(path: Path) -> str:
    """Return the suffix that determines the format, without .gz."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def find_format(path: Path) -> Format | None:
    """Return the format of a sparse file, or None if it is none, and so one of dense rows."""
    if path.is_dir() or not path.exists():
        return None
    kind = suffix(path)
    if kind in (".tsv", ".txt"):
        check_criteo(path)
        return Format(read_criteo, _HASHED)
    if kind == ".csv":
        if bandit.is_open_bandit(path):
            return Format(bandit.read, _HASHED)
        if path.suffix.lower() == ".gz":
            raise TrainoffError(f"{path} is gzipped, and of tables only click logs are read so; unzip it first")
    return Format(read_svmlight, {}) if kind in SUFFIXES else None


LARGEST = 2**28  # the largest index; a model has a weight for every index up to it

_TOKEN = rb"[^\s:#]{1,40}"
_LINE = re.compile(rb"\s*(%b)(?:\s+qid:%b)?((?:\s+\d{1,12}:%b)*)\s*(?:#.*)?" % (_TOKEN, _TOKEN, _TOKEN))
_EMPTY = re.compile(rb"\s*(?:#.*)?")
_PAIR = re.compile(rb"\d{1,12}:%b" % _TOKEN)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Rows:
    """Some rows: their labels, how many pairs each has, and all pairs, each with its line number."""

    labels: NDArray[np.float64]
    counts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float32]
    lines: NDArray[np.int64]


def read_svmlight(path: Path, _width: int, progress: Progress) -> tuple[Csr, NDArray[np.float64]]:
    """Return the rows and the labels as in the file; the largest index determines the number of columns.

    Indices count from 0 if an index 0 occurs anywhere, otherwise from 1. Zeros have no entry.
    """
    spool, labels, least, most = Spool(), [np.empty(0)], LARGEST, -1
    for first, piece in text.pieces(path, progress):
        rows = _ascending(_parsed(piece, first, path), path)
        least, most = min(least, int(rows.indices.min(initial=LARGEST))), max(most, int(rows.indices.max(initial=-1)))
        kept = rows.values != 0
        counts = np.bincount(_row_numbers(rows)[kept], minlength=len(rows.counts))
        spool.add(counts, rows.indices[kept].astype(np.int32), rows.values[kept])
        labels.append(rows.labels)
    if most < 0:
        raise TrainoffError(f"{path} is empty; expected lines of a label and pairs of index:value")
    whole = spool.rows(width=most + (least == 0))
    for start in range(0, whole.nonzeros if least else 0, _CHUNK):
        whole.columns[start : start + _CHUNK] -= 1
    return whole, np.concatenate(labels)


def _parsed(piece: bytes, first: int, path: Path) -> _Rows:
    """Parse a piece of the file that begins at line `first`."""
    labels, pairs, lines = [], [], []
    for line, content in enumerate(piece.split(b"\n")[:-1], first):
        if found := _LINE.fullmatch(content):
            labels.append(found[1])
            pairs.append(found[2].replace(b":", b" ").split())
            lines.append(line)
        elif not _EMPTY.fullmatch(content):
            raise _format_error(content, f"{path}: line {line}")
    counts = np.array([len(pair) // 2 for pair in pairs], np.int64)
    at = np.repeat(np.array(lines, np.int64), counts)
    tokens = [token for pair in pairs for token in pair]
    indices = _numbers(tokens[::2], at, "index", path)
    values = _numbers(tokens[1::2], at, "value", path)
    if indices.max(initial=0) > LARGEST:
        odd = int(np.argmax(indices > LARGEST))
        raise TrainoffError(f"{path}: line {at[odd]}: the index {tokens[2 * odd].decode()} is above {LARGEST:,}")
    known = _numbers(labels, np.array(lines, np.int64), "label", path)
    return _Rows(known, counts, indices.astype(np.int64), values.astype(np.float32), at)


def _format_error(content: bytes, location: str) -> TrainoffError:
    """Return the error for a line that is not of the format."""
    label, *pairs = content.split(b"#")[0].split()
    if pairs and pairs[0].startswith(b"qid:"):
        pairs = pairs[1:]
    odd = label if b":" in label else next((token for token in pairs if not _PAIR.fullmatch(token)), label)
    shown = odd.decode(errors="replace")
    shown = repr(shown if len(shown) <= 40 else f"{shown[:37]}...")
    if odd is label:
        return TrainoffError(f"{location} begins with {shown}; expected a label, then pairs of index:value")
    if odd.startswith(b"-"):
        return TrainoffError(f"{location}: {shown} has a negative index; indices count from 0 or 1")
    return TrainoffError(f"{location}: {shown} is not a pair of index:value")


def _numbers(tokens: list[bytes], lines: NDArray[np.int64], what: str, path: Path) -> NDArray[np.float64]:
    """Return the tokens as numbers; raise an error with the line of one that is not finite in float32."""
    try:
        numbers = np.fromiter(map(float, tokens), np.float64, len(tokens))
    except ValueError:
        numbers = np.fromiter(map(_number, tokens), np.float64, len(tokens))
    odd = np.flatnonzero(~(np.abs(numbers) <= np.finfo(np.float32).max))
    if len(odd):
        shown = tokens[odd[0]].decode(errors="replace")
        raise TrainoffError(f"{path}: line {lines[odd[0]]}: the {what} {shown!r} is not a finite number")
    return numbers


def _number(token: bytes) -> float:
    try:
        return float(token)
    except ValueError:
        return float("nan")


def _row_numbers(rows: _Rows) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(rows.counts)), rows.counts)


def _ascending(rows: _Rows, path: Path) -> _Rows:
    """Return the rows with ascending indices; raise an error if an index comes twice in a row."""
    of_row = _row_numbers(rows)
    same_row = of_row[1:] == of_row[:-1]
    if (same_row & (np.diff(rows.indices) <= 0)).any():
        order = np.lexsort((rows.indices, of_row))
        rows = replace(rows, indices=rows.indices[order], values=rows.values[order])
    twice = np.flatnonzero(same_row & (np.diff(rows.indices) == 0))
    if len(twice):
        raise TrainoffError(f"{path}: line {rows.lines[twice[0]]}: the index {rows.indices[twice[0]]} comes twice")
    return rows
