"""Large text files, plain or gzipped: read in pieces of whole lines, and split into the cells of a table."""

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
_MAX_LINE = 1 << 26  # bytes; a longer line is not text
_PAD = 8  # zero bytes behind a piece, so that eight bytes can be read from any position
_DIGITS = 15  # of the longest number

Cells = NDArray[np.int64]
Mask = NDArray[np.bool_]


def _open_text(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """Open a file; return it, and the stream to read its text from, which decompresses gzip."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return file, gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[return-value]  # GzipFile reads as IO does


def first_line(path: Path) -> bytes:
    """Return the first line of a file without its end, and at most the first bytes of a long one."""
    file, text = _open_text(path)
    with file, _read_errors(path):
        return text.readline(_PIECE).removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")


def pieces(path: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield the text in pieces of whole lines, each with the number of its first line.

    Every piece ends with a newline. Empty lines at the end of the file are left out.
    """
    file, text = _open_text(path)
    total, number, rest = path.stat().st_size, 1, b""
    with file, _read_errors(path):
        while more := text.read(_PIECE):
            rest += more if rest or number > 1 else more.removeprefix(b"\xef\xbb\xbf")
            lines = rest[: rest.rstrip(b"\r\n").rfind(b"\n") + 1]
            rest = rest[len(lines) :]
            if lines:
                yield number, lines
                number += lines.count(b"\n")
            if len(rest) > _MAX_LINE:
                raise TrainoffError(f"{path}: line {number} is longer than {_MAX_LINE >> 20} MiB; is this a text file?")
            progress(f"reading {path.name}", file.tell(), total)
    if rest.strip(b"\r\n"):
        yield number, rest.rstrip(b"\r\n") + b"\n"


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TrainoffError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise TrainoffError(f"{path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class TextTable:
    """Some lines of a table, with the positions at which each cell begins and ends: [lines, columns]."""

    bytes: NDArray[np.uint8]
    begins: Cells
    ends: Cells
    line: int  # the number of the first line
    path: Path

    def __len__(self) -> int:
        return len(self.begins)

    def text(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        cell = self.bytes[self.begins[row, column] : self.ends[row, column]]
        return cell.tobytes().decode(errors="replace")

    def hashes(self, columns: Sequence[int]) -> tuple[Hashes, Mask]:
        """Return a hash of each cell's text, the same on every machine, and which cells are not empty."""
        begins, lengths = self._lengths(columns)
        eight = np.ndarray((len(self.bytes) - _PAD + 1,), "<u8", self.bytes.data, strides=(1,))
        out = np.zeros(begins.shape, np.uint64)
        for place in range(0, int(lengths.max(initial=0)), 8):
            left = np.clip(lengths - place, 0, 8).astype(np.uint64)
            inside = left > 0
            codes = eight[np.where(inside, begins + place, 0)] & _MASKS[left]
            out = np.where(inside, mix(out) ^ codes if place else codes, out)
        return out, lengths > 0

    def whole_numbers(self, columns: Sequence[int]) -> tuple[Cells, Mask]:
        """Return the whole numbers in the cells, and which cells are not empty; raise an error for anything else."""
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
            raise self.error_at(row, columns[place], "is not a whole number")
        return np.where(minus, -out, out), lengths > 0

    def decimals(self, columns: Sequence[int]) -> NDArray[np.float32]:
        """Return the numbers in the cells, of which most are 0; an empty cell is 0, too."""
        codes, present = self.hashes(columns)
        out = np.zeros(codes.shape, np.float32)
        for row, place in np.argwhere(present & ~np.isin(codes, _ZEROS)).tolist():
            try:
                out[row, place] = float(self.text(row, columns[place]))
            except ValueError:
                out[row, place] = np.nan
            if not np.isfinite(out[row, place]):
                raise self.error_at(row, columns[place], "is not a finite number")
        return out

    def _lengths(self, columns: Sequence[int]) -> tuple[Cells, Cells]:
        begins = self.begins[:, list(columns)]
        return begins, self.ends[:, list(columns)] - begins

    def error_at(self, row: int, column: int, why: str) -> TrainoffError:
        """Return the error for a cell that cannot be read."""
        text = self.text(row, column)
        shown = repr(text if len(text) <= 40 else f"{text[:37]}...")
        return TrainoffError(f"{self.path}: line {self.line + row}, column {column + 1}: {shown} {why}")


_ZEROS = np.array([int.from_bytes(zero, "little") for zero in (b"0", b"0.0")], np.uint64)  # as `hashes` returns them
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # that keep the first bytes of eight


def tables(path: Path, separator: bytes, columns: int, progress: Progress, skip: int = 0) -> Iterator[TextTable]:
    """Yield the lines of a table behind the first `skip`; raise an error for a line with another number of columns."""
    for line, piece in pieces(path, progress):
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


Part = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], Mask]


def click_labels(table: TextTable, column: int) -> NDArray[np.int64]:
    """Return the labels in a column, which must be 0 or 1."""
    found, present = table.whole_numbers([column])
    odd = np.flatnonzero(~present[:, 0] | (found[:, 0] < 0) | (found[:, 0] > 1))
    if len(odd):
        raise table.error_at(int(odd[0]), column, "is not a label; expected 0 or 1")
    return found[:, 0]


def hash_categories(table: TextTable, cells: Sequence[int], first: int, width: int) -> tuple[NDArray[np.int32], Mask]:
    """Return the hashed columns, from `first` on, of the categories in some cells, ascending in each row, and a mask.

    The mask leaves out empty cells, and the second of two categories in one column.
    """
    hashes, present = table.hashes(cells)
    columns = columns_of(np.arange(len(cells)), hashes, first, width)
    columns = np.sort(np.where(present, columns, np.int32(width)), axis=1)
    present = columns < width
    present[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    return columns, present


def gather_rows(parts: Iterable[Part], width: int) -> tuple[Csr, NDArray[np.int64]]:
    """Return the rows and labels of parts, each of labels, numbers for the first columns, and hashed categories."""
    spool, found = Spool(), [np.empty(0, np.int64)]
    for part_labels, numbers, columns, present in parts:
        found.append(part_labels)
        first = np.broadcast_to(np.arange(numbers.shape[1], dtype=np.int32), numbers.shape)
        places = np.concatenate([first, columns], axis=1)
        values = np.concatenate([numbers, np.ones(columns.shape, np.float32)], axis=1)
        kept = np.concatenate([numbers != 0, present], axis=1)
        spool.add(kept.sum(axis=1), places[kept], values[kept])
    return spool.rows(width), np.concatenate(found)


Hashes = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_SHIFT = np.uint64(31)


def mix(codes: Hashes) -> Hashes:
    """Return hashes in which every bit depends on every bit of the code."""
    out = codes.copy()
    for odd in _ODD:
        out ^= out >> _SHIFT
        out *= odd
    out ^= out >> _SHIFT
    return out


def columns_of(fields: NDArray[Any], codes: Hashes, first: int, width: int) -> NDArray[np.int32]:
    """Return the columns from `first` to width - 1 of categories, each given by a field's number and a code.

    `fields` and `codes` are broadcast to a common shape.
    """
    hashes = mix(codes ^ mix(fields.astype(np.uint64) + np.uint64(1)))
    return (hashes % np.uint64(width - first)).astype(np.int32) + np.int32(first)
