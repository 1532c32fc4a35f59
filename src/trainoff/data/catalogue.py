"""The catalogue: find, make, load and verify datasets by their names or paths."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from shutil import rmtree

from trainoff.data import bandit, cache, clicks, digits, emnist, mnist, mnist_large, sparse_readers, split, user_data
from trainoff.data.cache import DamagedDataset, sha256
from trainoff.data.dataset import Data, DatasetEntry, DatasetRecipe, Progress, parse_options, silent, split_options
from trainoff.data.readers import SUFFIXES
from trainoff.errors import TrainoffError

_MODULES = (mnist, digits, mnist_large, emnist, clicks, bandit)  # of the datasets that have a name
ENTRIES: tuple[DatasetEntry, ...] = tuple(module.ENTRY for module in _MODULES)
RECIPES: dict[str, DatasetRecipe] = {module.RECIPE.name: module.RECIPE for module in _MODULES}
_SUFFIXES = {*SUFFIXES, *sparse_readers.SUFFIXES}


def load(name_or_path: str | Path) -> Data:
    """Map a dataset from the cache, where `get` has put it. Needs no network and takes milliseconds."""
    recipe = _find(name_or_path)
    try:
        data = cache.read(recipe)
    except DamagedDataset as damage:
        raise TrainoffError(
            f"{recipe.name} in {cache.dataset_folder(recipe.key)} is damaged ({damage}); run: {_command(recipe.name)}"
        ) from damage
    if data is None:
        raise TrainoffError(f"{recipe.name} is not in the cache {cache.root()}; run: {_command(recipe.name)}")
    return data


def get(
    name_or_path: str | Path, *, folder: Path | None = None, progress: Progress | None = None, force: bool = False
) -> Data:
    """Put a dataset into the cache unless it is there and intact, then load it.

    `folder` holds files that the user has; `force` makes the dataset again even if it looks intact.
    """
    recipe, progress = _find(name_or_path), progress or silent
    if not force and (data := _whole(recipe)):
        return data
    with cache.lock(recipe.key, progress):
        if force or not _whole(recipe):  # another process may have made it in the meantime
            cache.store(recipe, recipe.make(folder, progress), progress)
            rmtree(cache.downloads(recipe.key), ignore_errors=True)
    return load(name_or_path)


def identity(name_or_path: str | Path) -> str:
    """Return the hash of a dataset's content, whether or not it is in the cache."""
    return _find(name_or_path).identity


def catalogue() -> list[DatasetEntry]:
    """Every named dataset, then those in the cache that are the user's own or click logs of other sizes."""
    named = [replace(entry, cached=_whole(RECIPES[entry.name]) is not None) for entry in ENTRIES]
    return named + [entry for folder in _cached() if (entry := _cached_entry(folder))]


def entry(name_or_path: str | Path) -> DatasetEntry | None:
    """Return the entry of a dataset, whether made or not; None for user data that is not in the cache."""
    head, text = split_options(str(name_or_path))
    if head == "clicks":
        return clicks.entry(clicks.log_of(text))
    return next((known for known in catalogue() if known.name == str(name_or_path)), None)


def verify(progress: Progress | None = None) -> list[tuple[str, bool, str]]:
    """Read every cached dataset and compare its SHA-256: (name, whether it is intact, a sentence)."""
    return [_verified(folder, progress or silent) for folder in _cached()]


def _command(name: str) -> str:
    return f"trainoff data get {quote(name)}"


def _find(name_or_path: str | Path) -> DatasetRecipe:
    """Return the recipe of a named dataset or of the data at a path, with options behind a colon."""
    name = str(name_or_path)
    if name in RECIPES:
        return RECIPES[name]
    if name.startswith(split.PREFIX):
        whole = name.removeprefix(split.PREFIX)
        return split.validation_recipe(_find(whole), lambda progress: get(whole, progress=progress))
    text, path = "", Path(name).expanduser()
    if not path.exists():
        head, _, text = name.partition(":")
        if head in RECIPES:
            if head == "clicks":
                return clicks.recipe(text)
            parse_options(head, text, {})  # the others have none
            return RECIPES[head]
        name, text = split_options(name)
        path = Path(name).expanduser()
    if path.exists() or "/" in name or {path.suffix.lower(), sparse_readers.suffix(path)} & _SUFFIXES:
        return user_data.recipe(path, text)
    close = get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(RECIPES)}, and your own data by its path"
    raise TrainoffError(f"there is no dataset {name!r}; {hint}")


def _whole(recipe: DatasetRecipe) -> Data | None:
    """Return the dataset, if it is in the cache and the quick check finds no damage."""
    try:
        return cache.read(recipe)
    except DamagedDataset:
        return None


def _cached() -> list[Path]:
    """Return the folders of all datasets in the cache."""
    return sorted(folder for folder in (cache.root() / "data").glob("*") if folder.is_dir() and folder.suffix != ".new")


def _cached_entry(folder: Path) -> DatasetEntry | None:
    """Return the entry of a cached dataset; None if it is damaged, or one of ENTRIES."""
    try:
        about = cache.manifest(folder)
    except DamagedDataset:
        return None
    if about is None or about["name"] in RECIPES:
        return None
    text = _about(about["name"])
    train_rows, test_rows = (about["arrays"][part]["shape"][0] for part in ("y_train", "y_test"))
    if "width" not in about:
        features = about["arrays"]["x_train"]["shape"][1]
        return DatasetEntry(about["name"], text, train_rows, test_rows, features, about["classes"], True)
    nonzeros = sum(about["arrays"][f"{part}.values"]["shape"][0] for part in ("x_train", "x_test"))
    per_row = nonzeros / (train_rows + test_rows)
    return DatasetEntry(
        about["name"], f"{text}; sparse", train_rows, test_rows, about["width"], about["classes"], True, per_row
    )


def _about(name: str) -> str:
    """Return what a cached dataset is that is not in ENTRIES."""
    if name.startswith(split.PREFIX):
        return f"the training rows of {name.removeprefix(split.PREFIX)} divided again, for tuning"
    return clicks.ABOUT if name.startswith("clicks:") else "your own data"


def _verified(folder: Path, progress: Progress) -> tuple[str, bool, str]:
    name = folder.name
    try:
        about = cache.manifest(folder) or {"name": name, "arrays": {}}
        name = about["name"]
        cache.check_sizes(folder, about)
        for array, written in about["arrays"].items():
            if sha256(folder / f"{array}.npy", progress) != written["sha256"]:
                raise DamagedDataset(f"{array}.npy has changed")
    except (DamagedDataset, OSError) as damage:
        known = name in RECIPES or name != folder.name  # else its manifest is lost, and with it the path
        remedy = f"run: {_command(name)} --force" if known else "delete that folder"
        return name, False, f"{name} in {folder} is damaged ({damage}); {remedy}"
    return name, True, f"{name} is whole"
