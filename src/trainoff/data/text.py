"""Large text files, plain or gzipped: read in pieces of whole lines, and cut into cells where lines are a table."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data.cache import Spool
from trainoff.data.dataset import Csr, Progress
from trainoff.errors import TrainoffError

_PIECE = 1 << 23  # bytes read at a time
_LONGEST = 1 << 26  # a longer line is not text
_PAD = 8  # zero bytes behind a piece, so that the eight bytes from any place on can be read
_DIGITS = 15  # a longer number is refused

Cells = NDArray[np.int64]


def _opened(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """The file, and what to read its text from: itself, or the gzip file in it."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return file, gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[return-value]  # GzipFile reads as IO does


def first_line(path: Path) -> bytes:
    """The first line of a file, without its end, or as much of it as anyone needs."""
    file, text = _opened(path)
    with file, _whole(path):
        return text.readline(_PIECE).removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")


def pieces(path: Path, say: Progress) -> Iterator[tuple[int, bytes]]:
    """The text in pieces of whole lines, each with the number of its first line. Empty lines at the end are left out.

    Every piece ends with a line's end, whether the file does or not.
    """
    file, text = _opened(path)
    total, number, rest = path.stat().st_size, 1, b""
    with file, _whole(path):
        while more := text.read(_PIECE):
            rest += more if rest or number > 1 else more.removeprefix(b"\xef\xbb\xbf")
            lines = rest[: rest.rstrip(b"\r\n").rfind(b"\n") + 1]
            rest = rest[len(lines) :]
            if lines:
                yield number, lines
                number += lines.count(b"\n")
            if len(rest) > _LONGEST:
                raise TrainoffError(f"{path}: line {number} is longer than {_LONGEST >> 20} MiB; is this a text file?")
            say(f"reading {path.name}", file.tell(), total)
    if rest.strip(b"\r\n"):
        yield number, rest.rstrip(b"\r\n") + b"\n"


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading a file into a sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TrainoffError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise TrainoffError(f"{path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class TextTable:
    """Some lines of a table: where in the bytes each cell begins and ends, [lines, columns]."""

    bytes: NDArray[np.uint8]
    begins: Cells
    ends: Cells
    line: int  # the number of the first
    path: Path

    def __len__(self) -> int:
        return len(self.begins)

    def text(self, row: int, column: int) -> str:
        """What stands in a cell."""
        cell = self.bytes[self.begins[row, column] : self.ends[row, column]]
        return cell.tobytes().decode(errors="replace")

    def hashes(self, columns: Sequence[int]) -> tuple[Words, NDArray[np.bool_]]:
        """A hash of each cell's text, the same on every machine, and which cells are not empty."""
        begins, lengths = self._lengths(columns)
        eight = np.ndarray((len(self.bytes) - _PAD + 1,), "<u8", self.bytes.data, strides=(1,))
        out = np.zeros(begins.shape, np.uint64)
        for place in range(0, int(lengths.max(initial=0)), 8):
            left = np.clip(lengths - place, 0, 8).astype(np.uint64)
            inside = left > 0
            words = eight[np.where(inside, begins + place, 0)] & _MASKS[left]
            out = np.where(inside, mixed(out) ^ words if place else words, out)
        return out, lengths > 0

    def whole_numbers(self, columns: Sequence[int]) -> tuple[Cells, NDArray[np.bool_]]:
        """The whole numbers in the cells, and which cells are not empty; anything else is refused with its line."""
        begins, lengths = self._lengths(columns)
        minus = (self.bytes[begins] == ord("-")) & (lengths > 1)
        begins, digits = begins + minus, lengths - minus
        out = np.zeros(begins.shape, np.int64)
        wrong = digits > _DIGITS
        for place in range(min(int(digits.max(initial=0)), _DIGITS)):
            inside = digits > place
            digit = self.bytes[np.where(inside, begins + place, 0)].astype(np.int64) - ord("0")
            wrong |= inside & ((digit < 0) | (digit > 9))
            out = np.where(inside, out * 10 + digit, out)
        if wrong.any():
            row, place = (int(at) for at in np.argwhere(wrong)[0])
            raise self.refused(row, columns[place], "is not a whole number")
        return np.where(minus, -out, out), lengths > 0

    def decimals(self, columns: Sequence[int]) -> NDArray[np.float32]:
        """The numbers in the cells, of which most are 0; an empty cell is 0, too."""
        words, present = self.hashes(columns)
        out = np.zeros(words.shape, np.float32)
        for row, place in np.argwhere(present & ~np.isin(words, _ZEROS)).tolist():
            try:
                out[row, place] = float(self.text(row, columns[place]))
            except ValueError:
                out[row, place] = np.nan
            if not np.isfinite(out[row, place]):
                raise self.refused(row, columns[place], "is not a finite number")
        return out

    def _lengths(self, columns: Sequence[int]) -> tuple[Cells, Cells]:
        begins = self.begins[:, list(columns)]
        return begins, self.ends[:, list(columns)] - begins

    def refused(self, row: int, column: int, why: str) -> TrainoffError:
        """The sentence about a cell that cannot be read."""
        text = self.text(row, column)
        shown = repr(text if len(text) <= 40 else f"{text[:37]}...")
        return TrainoffError(f"{self.path}: line {self.line + row}, column {column + 1}: {shown} {why}")


_ZEROS = np.array([int.from_bytes(zero, "little") for zero in (b"0", b"0.0")], np.uint64)  # as `hashes` gives them
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # that leave the first bytes of eight


def tables(path: Path, separator: bytes, columns: int, say: Progress, skip: int = 0) -> Iterator[TextTable]:
    """The lines of a table behind the first `skip`, in pieces; a line with too few or too many columns is refused."""
    for line, piece in pieces(path, say):
        lines = piece
        for _ in range(skip if line == 1 else 0):
            lines = lines[lines.find(b"\n") + 1 :]
        if lines:
            yield _cut(lines.replace(b"\r\n", b"\n"), separator, columns, line + (skip if line == 1 else 0), path)


def _cut(lines: bytes, separator: bytes, columns: int, line: int, path: Path) -> TextTable:
    characters = np.frombuffer(lines + bytes(_PAD), np.uint8)
    breaks = np.flatnonzero((characters == ord(separator)) | (characters == ord("\n")))
    line_ends = np.flatnonzero(characters[breaks] == ord("\n"))
    counts = np.diff(line_ends, prepend=-1)
    if (counts != columns).any():
        odd = int(np.flatnonzero(counts != columns)[0])
        name = "tab" if separator == b"\t" else repr(separator.decode())
        raise TrainoffError(
            f"{path}: line {line + odd} has {counts[odd]} columns instead of {columns}; they are separated by {name}"
        )
    ends = breaks.reshape(-1, columns)
    begins = np.concatenate([[0], breaks[:-1] + 1]).reshape(-1, columns)
    return TextTable(characters, begins, ends, line, path)


Part = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.bool_]]


def click_labels(table: TextTable, column: int) -> NDArray[np.int64]:
    """The labels in a column: 0 or 1, nothing else."""
    found, present = table.whole_numbers([column])
    odd = np.flatnonzero(~present[:, 0] | (found[:, 0] < 0) | (found[:, 0] > 1))
    if len(odd):
        raise table.refused(int(odd[0]), column, "is not a label; expected 0 or 1")
    return found[:, 0]


def hash_categories(
    table: TextTable, cells: Sequence[int], first: int, width: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The columns, from `first` on, of the categories in some cells, ascending in each row, and which of them count.

    An empty cell does not count, and of two categories that fall into one column only the first.
    """
    hashes, present = table.hashes(cells)
    columns = columns_of(np.arange(len(cells)), hashes, first, width)
    columns = np.sort(np.where(present, columns, np.int32(width)), axis=1)
    present = columns < width
    present[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    return columns, present


def gather_rows(parts: Iterable[Part], width: int) -> tuple[Csr, NDArray[np.int64]]:
    """All rows and labels of parts that each hold labels, numbers for the first columns, and categories behind them."""
    spool, found = Spool(), [np.empty(0, np.int64)]
    for part_labels, numbers, columns, present in parts:
        found.append(part_labels)
        first = np.broadcast_to(np.arange(numbers.shape[1], dtype=np.int32), numbers.shape)
        places = np.concatenate([first, columns], axis=1)
        values = np.concatenate([numbers, np.ones(columns.shape, np.float32)], axis=1)
        kept = np.concatenate([numbers != 0, present], axis=1)
        spool.add(kept.sum(axis=1), places[kept], values[kept])
    return spool.rows(width), np.concatenate(found)


Words = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_SHIFT = np.uint64(31)


def mixed(words: Words) -> Words:
    """Each word scrambled so that every bit of the result depends on every bit of the word."""
    out = words.copy()
    for odd in _ODD:
        out ^= out >> _SHIFT
        out *= odd
    out ^= out >> _SHIFT
    return out


def columns_of(fields: NDArray[Any], words: Words, first: int, width: int) -> NDArray[np.int32]:
    """The columns of categories: a field's number and a word name one, and it falls into first to width - 1.

    `fields` and `words` are arrays of a common shape, or become so by broadcasting.
    """
    hashes = mixed(words ^ mixed(fields.astype(np.uint64) + np.uint64(1)))
    return (hashes % np.uint64(width - first)).astype(np.int32) + np.int32(first)
