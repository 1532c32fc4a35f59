"""open-bandit: click logs of the Open Bandit dataset, CSV files of items shown to users and of their clicks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainoff.data import sources, text
from trainoff.data.cache import combine
from trainoff.data.dataset import Csr, DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.data.split import split_sparse

_NEEDED = ("timestamp", "item_id", "position", "click", "propensity_score")
BITS = 18


@dataclass(frozen=True)
class BanditFiles:
    """One file, its SHA-256, and the package that carries it."""

    file: str
    sha256: str
    wheel: str


OPEN_BANDIT = BanditFiles(  # 10,000 rows of the campaign `all`, whose items were chosen at random
    file="obp/dataset/obd/random/all/all.csv",
    sha256="7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1",
    wheel="obp==0.4.1",
)
IDENTITY = combine("open-bandit", 1, BITS, OPEN_BANDIT.sha256)


def is_open_bandit(path: Path) -> bool:
    """Return whether a CSV file has the header of such a log."""
    return set(_NEEDED) <= set(_names(path))


def _names(path: Path) -> list[str]:
    return text.first_line(path).decode(errors="replace").split(",")


def read(path: Path, width: int, progress: Progress) -> tuple[Csr, NDArray[np.int64]]:
    """Return the rows: affinities as numbers in the first columns, item, position and user features hashed behind them.

    The time and the propensity score are no features.
    """
    return text.gather_rows(_parts(path, width, progress), width)


def _parts(path: Path, width: int, progress: Progress) -> Iterator[text.Part]:
    names = _names(path)
    numbers = [place for place, name in enumerate(names) if name.startswith("user-item_affinity_")]
    categories = [names.index("item_id"), names.index("position")]
    categories += [place for place, name in enumerate(names) if name.startswith("user_feature_")]
    for table in text.tables(path, b",", len(names), progress, skip=1):
        hashed = text.hash_categories(table, categories, len(numbers), width)
        yield text.click_labels(table, names.index("click")), table.decimals(numbers), *hashed


def make(folder: Path | None, progress: Progress, payload: BanditFiles = OPEN_BANDIT) -> RawDataset:
    """Read the file from the user's folder or from the package, and hold out a fifth of its rows."""
    name = payload.file.rsplit("/", 1)[-1]

    def from_folder() -> bytes:
        path = sources.find_user_file("open-bandit", folder, name)
        return sources.checked(path.read_bytes(), payload.sha256, str(path))

    def from_wheel() -> bytes:
        with sources.open_wheel(payload.wheel, progress) as archive:
            return sources.checked(archive.read(payload.file), payload.sha256, payload.wheel)

    advice = f"put {name} of {payload.wheel} into a folder and set TRAINOFF_DATA to it"
    raw = sources.first_of("open-bandit", from_folder, [from_wheel], advice)
    with tempfile.TemporaryDirectory(prefix="trainoff-") as place:
        path = Path(place) / name
        path.write_bytes(raw)
        x, y = read(path, 1 << BITS, progress)
    return split_sparse(x, y, classes=2)


ENTRY = DatasetEntry(
    "open-bandit", "a real click log of a fashion shop; sparse, few clicks", 8_000, 2_000, 1 << BITS, 2, nonzeros=6
)
RECIPE = DatasetRecipe.published("open-bandit", IDENTITY, make)
