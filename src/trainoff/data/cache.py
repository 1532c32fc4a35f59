"""The cache: one folder per dataset with its arrays and a manifest, seen whole or not at all.

<root>/data/<key>/        manifest.json, x_train.npy, y_train.npy, x_test.npy, y_test.npy; where rows are sparse
                          x_train.starts.npy, x_train.columns.npy and x_train.values.npy, and so for x_test
<root>/data/<key>.lock    held by the process that is making it
<root>/downloads/<key>/   transfers under way, kept so that they can be resumed
<root>/paths/             fingerprints of users' own files
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainoff.data import npy
from trainoff.data.dataset import Data, Made, Progress, Recipe
from trainoff.data.sparse import Csr, Selection
from trainoff.errors import TrainoffError

_PARTS = ("x_train", "y_train", "x_test", "y_test")
_MANIFEST = {"name", "identity", "classes", "image", "arrays"}
_SOMETIMES = {"width", "facts"}  # how many columns sparse rows have; what else is known


class Damaged(Exception):
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
                "arrays": {name: about for part in _PARTS for name, about in npy.write(draft, part, made, say).items()},
            }
            if isinstance(made.x_train, (Csr, Selection)):
                manifest["width"] = made.x_train.width
            if made.facts:
                manifest["facts"] = dict(made.facts)
            with (draft / "manifest.json").open("w") as file:
                json.dump(manifest, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(draft)
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            _sync_folder(final.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(recipe: Recipe) -> Data | None:
    """Map a dataset from the cache; None if it is not there, or was made by another version."""
    folder = place(recipe.key)
    about = manifest(folder)
    if about is None or about["identity"] != recipe.identity:
        return None
    check_sizes(folder, about)
    try:
        parts = {part: npy.read(folder, part, about.get("width")) for part in _PARTS}
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(str(error)) from error
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
        arrays = {name for part in _PARTS for name in npy.names(part, "width" in about)}
        whole = set(about) - _SOMETIMES == _MANIFEST and set(about["arrays"]) == arrays
    except (OSError, ValueError, TypeError):
        whole = False
    if not whole:
        raise Damaged("its manifest.json cannot be read")
    return dict(about)


def check_sizes(folder: Path, about: dict[str, Any]) -> None:
    """The cheap check of every load: each array has the size it was written with."""
    for name, array in about["arrays"].items():
        path = folder / f"{name}.npy"
        size = path.stat().st_size if path.exists() else 0
        if size != array["bytes"]:
            raise Damaged(f"{name}.npy has {size:,} bytes instead of {array['bytes']:,}")
