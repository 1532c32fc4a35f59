"""IDX files, the format of MNIST: a magic number, the sizes, then the values, often gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def spellings(name: str) -> list[str]:
    """The file names under which an IDX file is found: `-idx3-` or `.idx3-`, raw or gzipped."""
    raw = [name, name.replace("-idx", ".idx")]
    return raw + [f"{spelling}.gz" for spelling in raw]


def find(folder: Path, name: str) -> Path | None:
    """The IDX file of that name in a folder, in whichever spelling it is there."""
    return next((folder / s for s in spellings(name) if (folder / s).is_file()), None)


def content(path: Path) -> bytes:
    """The uncompressed bytes of a raw or gzipped file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TrainoffError(f"{path} cannot be read: {error.strerror}") from error
    return unzip(raw, str(path))


def unzip(raw: bytes, where: str) -> bytes:
    """The bytes without their gzip wrapping, if they have one."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise TrainoffError(f"{where} is not a whole gzip file ({error}); fetch it again") from error


def parse(raw: bytes, where: str) -> NDArray[Any]:
    """The array in an IDX file's bytes, without copying them."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES or raw[3] == 0:
        raise TrainoffError(f"{where} is not an IDX file: it begins with {raw[:4].hex(' ') or 'nothing'}")
    dtype, start = np.dtype(_TYPES[raw[2]]), 4 + 4 * raw[3]
    if len(raw) < start:
        raise TrainoffError(f"{where} is truncated: it ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", raw[3], 4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        fault = "is truncated" if len(raw) < expected else "is too long"
        raise TrainoffError(f"{where} {fault}: {expected:,} bytes expected, {len(raw):,} found; fetch it again")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)
