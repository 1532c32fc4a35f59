"""Open Bandit's click logs: which item was shown to whom and where, and whether it was clicked; CSV files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainoff.data import sources, text
from trainoff.data import text as clicklog
from trainoff.data.cache import combine
from trainoff.data.dataset import Csr, Made, Progress
from trainoff.data.sources import Unavailable
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
    """Whether the head of a CSV file is that of such a log."""
    return set(_NEEDED) <= set(_names(path))


def _names(path: Path) -> list[str]:
    return text.first_line(path).decode(errors="replace").split(",")


def read(path: Path, width: int, say: Progress) -> tuple[Csr, NDArray[np.int64]]:
    """The rows: affinities as numbers in the first columns; item, position and the user's features hashed behind them.

    The time and the propensity score are no features.
    """
    return clicklog.gather_rows(_parts(path, width, say), width)


def _parts(path: Path, width: int, say: Progress) -> Iterator[clicklog.Part]:
    names = _names(path)
    numbers = [place for place, name in enumerate(names) if name.startswith("user-item_affinity_")]
    categories = [names.index("item_id"), names.index("position")]
    categories += [place for place, name in enumerate(names) if name.startswith("user_feature_")]
    for table in text.tables(path, b",", len(names), say, skip=1):
        hashed = clicklog.hash_categories(table, categories, len(numbers), width)
        yield clicklog.click_labels(table, names.index("click")), table.decimals(numbers), *hashed


def make(folder: Path | None, say: Progress, payload: BanditFiles = OPEN_BANDIT) -> Made:
    """Bring the file from the user's folder or out of the package, and hold a fifth of its rows out."""
    offered: list[Callable[[], bytes]] = [partial(_from_folder, payload, folder)]
    offered += [partial(_from_wheel, payload, say) if sources.online() else sources.network_refused]
    name = payload.file.rsplit("/", 1)[-1]
    advice = f"put {name} of {payload.wheel} into a folder and set TRAINOFF_DATA to it"
    raw = sources.first_of("open-bandit", offered, advice)
    with tempfile.TemporaryDirectory(prefix="trainoff-") as place:
        path = Path(place) / name
        path.write_bytes(raw)
        x, y = read(path, 1 << BITS, say)
    return split_sparse(x, y, classes=2)


def _from_folder(payload: BanditFiles, folder: Path | None) -> bytes:
    places = sources.folder_of_the_user("open-bandit", folder)
    name = payload.file.rsplit("/", 1)[-1]
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is None:
        raise Unavailable(f"{places[0]} holds no {name}")
    return sources.checked(path.read_bytes(), payload.sha256, str(path))


def _from_wheel(payload: BanditFiles, say: Progress) -> bytes:
    with sources.unzipped(payload.wheel, say) as archive:
        return sources.checked(archive.read(payload.file), payload.sha256, payload.wheel)
