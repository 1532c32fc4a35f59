"""The cache: one folder per dataset with its arrays and a manifest, seen whole or not at all.

<root>/data/<key>/        manifest.json, x_train.npy, y_train.npy, x_test.npy, y_test.npy; where rows are sparse
                          x_train.starts.npy, x_train.columns.npy and x_train.values.npy, and so for x_test
<root>/data/<key>.lock    held by the process that is making it
<root>/downloads/<key>/   transfers under way, kept so that they can be resumed
<root>/paths/             fingerprints of users' own files
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import cache
from trainoff.data.dataset import Csr, Data, Made, Progress, Recipe, Selection, silent
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write, sync

_PARTS = ("x_train", "y_train", "x_test", "y_test")
_MANIFEST = {"name", "identity", "classes", "image", "arrays"}
_SOMETIMES = {"width", "facts"}  # how many columns sparse rows have; what else is known


class DamagedDataset(Exception):
    """A dataset is in the cache but not as it was written; the text says what is wrong with it."""


def root() -> Path:
    """Where the cache lies: $TRAINOFF_CACHE, else the user's cache folder."""
    if own := os.environ.get("TRAINOFF_CACHE"):
        return Path(own).expanduser().absolute()
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        home = Path(tempfile.gettempdir())
    return home.absolute() / "trainoff"


def place(key: str) -> Path:
    """The folder of one dataset."""
    return root() / "data" / key


def downloads(key: str) -> Path:
    """The folder of one dataset's unfinished transfers."""
    return root() / "downloads" / key


@contextmanager
def written() -> Iterator[None]:
    """Turn what goes wrong while writing to the cache into a sentence."""
    try:
        yield
    except OSError as error:
        raise TrainoffError(
            f"the cache {root()} cannot be written ({error.strerror or error}); free some space "
            "or set TRAINOFF_CACHE to another folder"
        ) from error


@contextmanager
def lock(key: str, say: Progress) -> Iterator[None]:
    """Hold one dataset's lock; who comes second waits, and then finds the dataset made."""
    path = root() / "data" / f"{key}.lock"
    with written():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        with written():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for the process that is already bringing it", 0, None)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def store(recipe: Recipe, made: Made, say: Progress) -> None:
    """Write a dataset into the cache: in a folder beside, synced, then renamed."""
    final = place(recipe.key)
    draft = final.with_name(f"{recipe.key}.new")  # one name is enough under the lock
    with written():
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        draft.mkdir(parents=True)
        try:
            manifest = {
                "name": recipe.name,
                "identity": recipe.identity,
                "classes": made.classes,
                "image": made.image,
                "arrays": {
                    name: about for part in _PARTS for name, about in write_arrays(draft, part, made, say).items()
                },
            }
            if isinstance(made.x_train, (Csr, Selection)):
                manifest["width"] = made.x_train.width
            if made.facts:
                manifest["facts"] = dict(made.facts)
            (draft / "manifest.json").write_text(json.dumps(manifest, indent=1))
            sync(draft / "manifest.json")
            sync(draft)
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            sync(final.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def read(recipe: Recipe) -> Data | None:
    """Map a dataset from the cache; None if it is not there, or was made by another version."""
    folder = place(recipe.key)
    about = manifest(folder)
    if about is None or about["identity"] != recipe.identity:
        return None
    check_sizes(folder, about)
    try:
        parts = {part: map_arrays(folder, part, about.get("width")) for part in _PARTS}
    except (OSError, ValueError, EOFError) as error:
        raise DamagedDataset(str(error)) from error
    return Data(
        recipe.title,
        **parts,
        classes=about["classes"],
        identity=recipe.identity,
        image=tuple(about["image"]) if about["image"] else None,
        facts=about.get("facts", {}),
    )


def manifest(folder: Path) -> dict[str, Any] | None:
    """What a dataset's manifest says, None if there is no such dataset."""
    if not folder.exists():
        return None
    try:
        about = json.loads((folder / "manifest.json").read_bytes())
        arrays = {name for part in _PARTS for name in array_names(part, "width" in about)}
        whole = set(about) - _SOMETIMES == _MANIFEST and set(about["arrays"]) == arrays
    except (OSError, ValueError, TypeError):
        whole = False
    if not whole:
        raise DamagedDataset("its manifest.json cannot be read")
    return dict(about)


def check_sizes(folder: Path, about: dict[str, Any]) -> None:
    """The cheap check of every load: each array has the size it was written with."""
    for name, array in about["arrays"].items():
        path = folder / f"{name}.npy"
        size = path.stat().st_size if path.exists() else 0
        if size != array["bytes"]:
            raise DamagedDataset(f"{name}.npy has {size:,} bytes instead of {array['bytes']:,}")


SPARSE_ARRAYS = ("starts", "columns", "values")  # the arrays of sparse rows, as Csr calls them
_CHUNK_ROWS = 4096

About = dict[str, Any]  # what the manifest says of one array


class _File:
    """One .npy file while it is written; its SHA-256 grows with it."""

    def __init__(self, file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype), shape
        header: Any = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(0)
        self._digest = hashlib.sha256(file.read())

    def add(self, values: NDArray[Any]) -> None:
        chunk = np.ascontiguousarray(values, self._dtype)
        self._digest.update(chunk.data)
        self._file.write(chunk.data)

    def close(self) -> About:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest(), "shape": self._shape}


@contextmanager
def _open(folder: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> Iterator[_File]:
    with (folder / f"{name}.npy").open("wb+") as file:
        yield _File(file, dtype, shape)


def write_arrays(folder: Path, name: str, made: Made, say: Progress) -> dict[str, About]:
    """Write one part of a dataset, scaled, as one array or, where its rows are sparse, as three."""
    part = getattr(made, name)
    if isinstance(part, (Csr, Selection)):
        return _write_sparse(folder, name, part, made.scale, say)
    dtype = np.dtype(np.float32 if name.startswith("x") else np.int64)
    with _open(folder, name, dtype, part.shape) as file:
        for start in range(0, len(part), _CHUNK_ROWS):
            chunk = np.ascontiguousarray(part[start : start + _CHUNK_ROWS], dtype)
            if dtype == np.float32 and made.scale != 1:
                chunk = chunk / np.float32(made.scale)
            file.add(chunk)
            say(f"writing {name}", start + len(chunk), len(part))
        return {name: file.close()}


def _write_sparse(
    folder: Path, name: str, part: Csr | Selection, scale: float | NDArray[np.float32], say: Progress
) -> dict[str, About]:
    shapes = (len(part) + 1,), (part.nonzeros,), (part.nonzeros,)
    with ExitStack() as stack:
        files = {
            f"{name}.{array}": stack.enter_context(_open(folder, f"{name}.{array}", dtype, shape))
            for array, dtype, shape in zip(SPARSE_ARRAYS, (np.int64, np.int32, np.float32), shapes, strict=True)
        }
        starts, columns, values = files.values()
        starts.add(np.zeros(1))
        written = 0
        for start in range(0, len(part), _CHUNK_ROWS):
            rows = part[start : start + _CHUNK_ROWS].compact()
            starts.add(written + rows.starts[1:])
            columns.add(rows.columns)
            values.add(rows.values / (scale[rows.columns] if isinstance(scale, np.ndarray) else np.float32(scale)))
            written += rows.nonzeros
            say(f"writing {name}", start + len(rows), len(part))
        return {array: file.close() for array, file in files.items()}


def array_names(name: str, sparse: bool) -> list[str]:
    """The arrays that one part of a dataset is made of."""
    return [f"{name}.{array}" for array in SPARSE_ARRAYS] if sparse and name.startswith("x") else [name]


def map_arrays(folder: Path, name: str, width: int | None) -> Any:
    """One part of a dataset, mapped read-only; `width` is that of sparse rows, None where they are dense."""
    arrays = [np.load(folder / f"{array}.npy", mmap_mode="r") for array in array_names(name, width is not None)]
    if width is None or len(arrays) == 1:
        return arrays[0]
    starts, columns, values = arrays
    return Csr(starts, columns, values, width)


class Spool:
    """Takes sparse rows piece by piece, however many they are, and gives all of them, mapped from a file.

    The files lie beside the datasets of the cache and have no name: nothing is left of them if the process dies.
    """

    def __init__(self) -> None:
        folder = cache.root() / "data"
        with cache.written():
            folder.mkdir(parents=True, exist_ok=True)
            self._columns: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the spool)
            self._values: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (as long as the spool)
        self._counts: list[NDArray[np.int64]] = []

    def add(self, counts: NDArray[np.integer[Any]], columns: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Add rows: how many non-zeros each has, and all of these, row after row."""
        with cache.written():
            self._columns.write(np.ascontiguousarray(columns, np.int32).data)
            self._values.write(np.ascontiguousarray(values, np.float32).data)
        self._counts.append(counts.astype(np.int64))

    def rows(self, width: int) -> Csr:
        """All rows that were added. Their arrays can be changed in place."""
        starts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        np.cumsum(starts, out=starts)
        return Csr(starts, _mapped(self._columns, np.int32), _mapped(self._values, np.float32), width)


def _mapped(file: IO[bytes], dtype: type[Any]) -> NDArray[Any]:
    with cache.written():
        file.flush()
        return np.memmap(file, dtype, "r+") if file.tell() else np.empty(0, dtype)


_CHUNK = 1 << 20


def combine(*parts: object) -> str:
    """One SHA-256 for several named parts: a maker, its version, what it is made from."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()


def sha256(path: Path, say: Progress = silent) -> str:
    """The SHA-256 of a file's content."""
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            say(f"checking {path.name}", file.tell(), total)
    return digest.hexdigest()


def remembered_sha256(path: Path, memory: Path) -> str:
    """The SHA-256 of a file, computed anew only if its size or its time of change differs from last time."""
    path = path.resolve()
    stat = path.stat()
    seen = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = memory / f"{combine(path)[:32]}.json"
    with suppress(OSError, ValueError):
        known = json.loads(note.read_text())
        if isinstance(known, dict) and all(known.get(key) == value for key, value in seen.items()):
            return str(known["sha256"])
    digest = sha256(path)
    with suppress(OSError):  # a cache that cannot be written only costs time here
        memory.mkdir(parents=True, exist_ok=True)
        atomic_write(note, json.dumps({**seen, "sha256": digest}))
    return digest
