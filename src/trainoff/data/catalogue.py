"""The catalogue: every dataset by its name, and the way each is found, made, loaded and verified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from shutil import rmtree

from trainoff.data import bandit, cache, clicks, dataset, digits, emnist, mnist, mnist_large, own, sparse_readers, split
from trainoff.data.cache import DamagedDataset, sha256
from trainoff.data.dataset import Data, Made, Progress, Recipe, silent
from trainoff.data.readers import SUFFIXES
from trainoff.errors import TrainoffError


@dataclass(frozen=True)
class DatasetEntry:
    """One line of `trainoff data list`."""

    name: str
    about: str
    train_rows: int
    test_rows: int
    features: int
    classes: int
    cached: bool = False
    nonzeros: float | None = None  # of a row, about, where rows are sparse

    @property
    def rows(self) -> int:
        return self.train_rows + self.test_rows

    @property
    def bytes(self) -> int:
        """What it takes in the cache: four bytes a feature, in sparse rows eight and eight a row; eight a label."""
        row = 4 * self.features if self.nonzeros is None else 8 * self.nonzeros + 8
        return round(self.rows * (row + 8))


def _make_large(folder: Path | None, say: Progress) -> Made:
    return mnist_large.make(get("mnist", folder=folder, say=say), say)


_CLICKS = "a click log made here, 13 numbers and 26 categories a row"


def _clicks(log: clicks.Log) -> DatasetEntry:
    return DatasetEntry(
        log.name, f"{_CLICKS}; sparse", log.rows, log.test_rows, 1 << log.bits, 2, nonzeros=clicks.NONZEROS
    )


ENTRIES = (
    DatasetEntry("mnist", "handwritten digits of 28 x 28 pixels", 60_000, 10_000, 784, 10),
    DatasetEntry("digits", "digits of 8 x 8 pixels that come with scikit-learn; always offline", 1_437, 360, 64, 10),
    DatasetEntry("mnist-large", "four small distortions of every digit of mnist, made here", 240_000, 40_000, 784, 10),
    DatasetEntry("emnist-digits", "handwritten digits of EMNIST, a download of 536 MB", 240_000, 40_000, 784, 10),
    _clicks(clicks.Log()),
    DatasetEntry(
        "open-bandit", "a real click log of a fashion shop; sparse, few clicks", 8_000, 2_000, 1 << 18, 2, nonzeros=6
    ),
)
RECIPES = {
    name: Recipe(name, title=name, key=name, identity=identity, make=make)
    for name, identity, make in (
        ("mnist", mnist.IDENTITY, mnist.make),
        ("digits", digits.IDENTITY, digits.make),
        ("mnist-large", mnist_large.identity(mnist.IDENTITY), _make_large),
        ("emnist-digits", emnist.IDENTITY, emnist.make),
        ("open-bandit", bandit.IDENTITY, bandit.make),
    )
} | {"clicks": clicks.recipe()}

_SUFFIXES = {*SUFFIXES, *sparse_readers.SUFFIXES}


def load(name_or_path: str | Path) -> Data:
    """Map a dataset from the cache, where `get` has brought it. Needs no network and takes milliseconds."""
    recipe = _find(name_or_path)
    try:
        data = cache.read(recipe)
    except DamagedDataset as damage:
        raise TrainoffError(
            f"{recipe.name} in {cache.place(recipe.key)} is damaged ({damage}); run: {_command(recipe.name)}"
        ) from damage
    if data is None:
        raise TrainoffError(f"{recipe.name} is not in the cache {cache.root()}; run: {_command(recipe.name)}")
    return data


def get(
    name_or_path: str | Path, *, folder: Path | None = None, say: Progress | None = None, force: bool = False
) -> Data:
    """Bring a dataset into the cache unless it is there and whole, then load it.

    `folder` holds files the user already has; `force` makes the dataset anew even if it looks whole.
    """
    recipe, say = _find(name_or_path), say or silent
    if not force and (data := _whole(recipe)):
        return data
    with cache.lock(recipe.key, say):
        if force or not _whole(recipe):  # another process may have made it meanwhile
            cache.store(recipe, recipe.make(folder, say), say)
            rmtree(cache.downloads(recipe.key), ignore_errors=True)
    return load(name_or_path)


def identity(name_or_path: str | Path) -> str:
    """What a dataset contains, as a hash, whether or not it is in the cache."""
    return _find(name_or_path).identity


def catalogue() -> list[DatasetEntry]:
    """Every named dataset, then those in the cache that are the user's own or click logs of other sizes."""
    named = [replace(entry, cached=_whole(RECIPES[entry.name]) is not None) for entry in ENTRIES]
    return named + [entry for folder in _cached() if (entry := _own_entry(folder))]


def entry(name_or_path: str | Path) -> DatasetEntry | None:
    """What is known of a dataset before it is made; of the user's own nothing, unless it is in the cache."""
    head, text = dataset.split_options(str(name_or_path))
    if head == "clicks":
        return _clicks(clicks.log_of(text))
    return next((known for known in catalogue() if known.name == str(name_or_path)), None)


def verify(say: Progress | None = None) -> list[tuple[str, bool, str]]:
    """Read every cached dataset again and compare its SHA-256: (name, whether it is whole, a sentence)."""
    return [_verified(folder, say or silent) for folder in _cached()]


def _command(name: str) -> str:
    return f"trainoff data get {quote(name)}"


def _find(name_or_path: str | Path) -> Recipe:
    """The recipe of a named dataset, or of the data at a path; options may stand behind a colon."""
    name = str(name_or_path)
    if name in RECIPES:
        return RECIPES[name]
    if name.startswith(split.PREFIX):
        whole = name.removeprefix(split.PREFIX)
        return split.validation_recipe(_find(whole), lambda say: get(whole, say=say))
    text, path = "", Path(name).expanduser()
    if not path.exists():
        head, _, text = name.partition(":")
        if head in RECIPES:
            return clicks.recipe(text) if head == "clicks" else _plain(head, text)
        name, text = dataset.split_options(name)
        path = Path(name).expanduser()
    if path.exists() or "/" in name or {path.suffix.lower(), sparse_readers.suffix(path)} & _SUFFIXES:
        return own.recipe(path, text)
    near = get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}, and your own data by its path"
    raise TrainoffError(f"there is no dataset {name!r}; {hint}")


def _plain(name: str, text: str) -> Recipe:
    """The recipe of a dataset that has no options."""
    dataset.parse_options(name, text, {})
    return RECIPES[name]


def _whole(recipe: Recipe) -> Data | None:
    """The dataset, if it is in the cache and the cheap check finds no damage."""
    try:
        return cache.read(recipe)
    except DamagedDataset:
        return None


def _cached() -> list[Path]:
    """The folders of all datasets in the cache."""
    return sorted(folder for folder in (cache.root() / "data").glob("*") if folder.is_dir() and folder.suffix != ".new")


def _own_entry(folder: Path) -> DatasetEntry | None:
    """What the catalogue says of a dataset that is not in ENTRIES; None if the folder holds one that is, or a wreck."""
    try:
        about = cache.manifest(folder)
    except DamagedDataset:
        return None
    if about is None or about["name"] in RECIPES:
        return None
    told = _told(about["name"])
    train_rows, test_rows = (about["arrays"][part]["shape"][0] for part in ("y_train", "y_test"))
    if "width" not in about:
        features = about["arrays"]["x_train"]["shape"][1]
        return DatasetEntry(about["name"], told, train_rows, test_rows, features, about["classes"], True)
    nonzeros = sum(about["arrays"][f"{part}.values"]["shape"][0] for part in ("x_train", "x_test"))
    per_row = nonzeros / (train_rows + test_rows)
    return DatasetEntry(
        about["name"], f"{told}; sparse", train_rows, test_rows, about["width"], about["classes"], True, per_row
    )


def _told(name: str) -> str:
    """What a dataset is that is in the cache and not in ENTRIES."""
    if name.startswith(split.PREFIX):
        return f"the training rows of {name.removeprefix(split.PREFIX)} divided again, for tuning"
    return _CLICKS if name.startswith("clicks:") else "your own data"


def _verified(folder: Path, say: Progress) -> tuple[str, bool, str]:
    name = folder.name
    try:
        about = cache.manifest(folder) or {"name": name, "arrays": {}}
        name = about["name"]
        cache.check_sizes(folder, about)
        for array, written in about["arrays"].items():
            if sha256(folder / f"{array}.npy", say) != written["sha256"]:
                raise DamagedDataset(f"{array}.npy has changed")
    except (DamagedDataset, OSError) as damage:
        known = name in RECIPES or name != folder.name  # else its manifest is lost, and with it the path
        remedy = f"run: {_command(name)} --force" if known else "delete that folder"
        return name, False, f"{name} in {folder} is damaged ({damage}); {remedy}"
    return name, True, f"{name} is whole"
