"""The cache: a folder per dataset with its arrays and a manifest, written atomically.

<root>/data/<key>/        manifest.json, x_train.npy, y_train.npy, x_test.npy, y_test.npy; of sparse rows
                          x_train.starts.npy, x_train.columns.npy and x_train.values.npy, and the same for x_test
<root>/data/<key>.lock    locked by the process that makes it
<root>/downloads/<key>/   incomplete downloads, kept so that they can be resumed
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

from trainoff.data.dataset import Csr, Data, DatasetRecipe, Progress, RawDataset, Selection, silent
from trainoff.errors import TrainoffError
from trainoff.files import atomic_write, sync

_PARTS = ("x_train", "y_train", "x_test", "y_test")
_MANIFEST = {"name", "identity", "classes", "image", "arrays"}
_OPTIONAL = {"width", "facts"}  # the number of columns of sparse rows; other facts


class DamagedDataset(Exception):
    """A cached dataset is not as it was written; the text says what is wrong with it."""


def root() -> Path:
    """Return the folder of the cache: $TRAINOFF_CACHE, else in the user's cache folder."""
    if folder := os.environ.get("TRAINOFF_CACHE"):
        return Path(folder).expanduser().absolute()
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        home = Path(tempfile.gettempdir())
    return home.absolute() / "trainoff"


def dataset_folder(key: str) -> Path:
    """Return the folder of one dataset."""
    return root() / "data" / key


def downloads(key: str) -> Path:
    """Return the folder of one dataset's incomplete downloads."""
    return root() / "downloads" / key


@contextmanager
def write_errors() -> Iterator[None]:
    """Turn errors of writing to the cache into a sentence."""
    try:
        yield
    except OSError as error:
        raise TrainoffError(
            f"the cache {root()} cannot be written ({error.strerror or error}); free some space "
            "or set TRAINOFF_CACHE to another folder"
        ) from error


@contextmanager
def lock(key: str, progress: Progress) -> Iterator[None]:
    """Hold one dataset's lock; a second process waits, and then finds the dataset made."""
    path = root() / "data" / f"{key}.lock"
    with write_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        with write_errors():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for the process that is already making it", 0, None)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def store(recipe: DatasetRecipe, made: RawDataset, progress: Progress) -> None:
    """Write a dataset into a draft folder of the cache, sync it, and rename it."""
    final = dataset_folder(recipe.key)
    draft = final.with_name(f"{recipe.key}.new")  # one name suffices under the lock
    with write_errors():
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        draft.mkdir(parents=True)
        try:
            manifest = {
                "name": recipe.name,
                "identity": recipe.identity,
                "classes": made.classes,
                "image": made.image,
                "arrays": {
                    name: about for part in _PARTS for name, about in write_arrays(draft, part, made, progress).items()
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


def read(recipe: DatasetRecipe) -> Data | None:
    """Map a dataset from the cache; return None if it is absent, or was made by another version."""
    folder = dataset_folder(recipe.key)
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
    """Return a dataset's manifest, or None if there is no such dataset."""
    if not folder.exists():
        return None
    try:
        about = json.loads((folder / "manifest.json").read_bytes())
        arrays = {name for part in _PARTS for name in array_names(part, "width" in about)}
        whole = set(about) - _OPTIONAL == _MANIFEST and set(about["arrays"]) == arrays
    except (OSError, ValueError, TypeError):
        whole = False
    if not whole:
        raise DamagedDataset("its manifest.json cannot be read")
    return dict(about)


def check_sizes(folder: Path, about: dict[str, Any]) -> None:
    """Check that each array has the size with which it was written; quick enough for every load."""
    for name, array in about["arrays"].items():
        path = folder / f"{name}.npy"
        size = path.stat().st_size if path.exists() else 0
        if size != array["bytes"]:
            raise DamagedDataset(f"{name}.npy has {size:,} bytes instead of {array['bytes']:,}")


SPARSE_ARRAYS = ("starts", "columns", "values")  # the arrays of sparse rows, as Csr calls them
_CHUNK_ROWS = 4096

ArrayFacts = dict[str, Any]  # of one array, in the manifest


class _File:
    """A .npy file that is being written, with its SHA-256."""

    def __init__(self, file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype), shape
        header: Any = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(0)
        self._digest = hashlib.sha256(file.read())

    def add(self, values: NDArray[Any]) -> None:
        chunk = np.ascontiguousarray(values, self._dtype)
        self._digest.update(chunk.data)
        self._file.write(chunk.data)

    def close(self) -> ArrayFacts:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest(), "shape": self._shape}


def write_arrays(folder: Path, name: str, made: RawDataset, progress: Progress) -> dict[str, ArrayFacts]:
    """Write one part of a dataset, scaled, as one array, or as three if its rows are sparse."""
    part = getattr(made, name)
    if isinstance(part, (Csr, Selection)):
        return _write_sparse(folder, name, part, made.scale, progress)
    dtype = np.dtype(np.float32 if name.startswith("x") else np.int64)
    with (folder / f"{name}.npy").open("wb+") as opened:
        file = _File(opened, dtype, part.shape)
        for start in range(0, len(part), _CHUNK_ROWS):
            chunk = np.ascontiguousarray(part[start : start + _CHUNK_ROWS], dtype)
            if dtype == np.float32 and made.scale != 1:
                chunk = chunk / np.float32(made.scale)
            file.add(chunk)
            progress(f"writing {name}", start + len(chunk), len(part))
        return {name: file.close()}


def _write_sparse(
    folder: Path, name: str, part: Csr | Selection, scale: float | NDArray[np.float32], progress: Progress
) -> dict[str, ArrayFacts]:
    shapes = (len(part) + 1,), (part.nonzeros,), (part.nonzeros,)
    with ExitStack() as stack:
        files = {
            f"{name}.{array}": _File(stack.enter_context((folder / f"{name}.{array}.npy").open("wb+")), dtype, shape)
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
            progress(f"writing {name}", start + len(rows), len(part))
        return {array: file.close() for array, file in files.items()}


def array_names(name: str, sparse: bool) -> list[str]:
    """Return the names of the arrays of one part of a dataset."""
    return [f"{name}.{array}" for array in SPARSE_ARRAYS] if sparse and name.startswith("x") else [name]


def map_arrays(folder: Path, name: str, width: int | None) -> Any:
    """Map one part of a dataset read-only; `width` is that of sparse rows, None where they are dense."""
    arrays = [np.load(folder / f"{array}.npy", mmap_mode="r") for array in array_names(name, width is not None)]
    if width is None or len(arrays) == 1:
        return arrays[0]
    starts, columns, values = arrays
    return Csr(starts, columns, values, width)


class Spool:
    """Collects sparse rows in temporary files, so that they need not fit into memory.

    The files lie beside the cached datasets and have no name, so that they vanish if the process dies.
    """

    def __init__(self) -> None:
        folder = root() / "data"
        with write_errors():
            folder.mkdir(parents=True, exist_ok=True)
            self._columns: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open as long as the spool
            self._values: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open as long as the spool
        self._counts: list[NDArray[np.int64]] = []

    def add(self, counts: NDArray[np.integer[Any]], columns: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Add rows: the number of non-zeros of each, and all non-zeros, row after row."""
        with write_errors():
            self._columns.write(np.ascontiguousarray(columns, np.int32).data)
            self._values.write(np.ascontiguousarray(values, np.float32).data)
        self._counts.append(counts.astype(np.int64))

    def rows(self, width: int) -> Csr:
        """Return all rows, mapped from the files. Their arrays can be changed in place."""
        starts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        np.cumsum(starts, out=starts)
        return Csr(starts, _mapped(self._columns, np.int32), _mapped(self._values, np.float32), width)


def _mapped(file: IO[bytes], dtype: type[Any]) -> NDArray[Any]:
    with write_errors():
        file.flush()
        return np.memmap(file, dtype, "r+") if file.tell() else np.empty(0, dtype)


_CHUNK = 1 << 20


def combine(*parts: object) -> str:
    """Return one SHA-256 for several parts: a maker, its version, what it is made from."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()


def sha256(path: Path, progress: Progress = silent) -> str:
    """Return the SHA-256 of a file."""
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(f"checking {path.name}", file.tell(), total)
    return digest.hexdigest()


def cached_sha256(path: Path, folder: Path) -> str:
    """Return the SHA-256 of a file, from a cache in `folder` unless its size or modification time has changed."""
    path = path.resolve()
    stat = path.stat()
    seen = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    entry = folder / f"{combine(path)[:32]}.json"
    with suppress(OSError, ValueError):
        known = json.loads(entry.read_text())
        if isinstance(known, dict) and all(known.get(key) == value for key, value in seen.items()):
            return str(known["sha256"])
    digest = sha256(path)
    with suppress(OSError):  # a cache that cannot be written only costs time here
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(entry, json.dumps({**seen, "sha256": digest}))
    return digest
