"""emnist-digits: 280,000 handwritten digits, one of the datasets in the publisher's EMNIST archive."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import cache, readers, sources
from trainoff.data import cache as fingerprint
from trainoff.data.dataset import Made, Progress
from trainoff.data.sources import Unavailable, download
from trainoff.errors import TrainoffError


@dataclass(frozen=True)
class Archive:
    """A zip archive that is published at an address, and its SHA-256."""

    address: str
    sha256: str


EMNIST = Archive(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)
IDENTITY = fingerprint.combine("emnist-digits", 1, EMNIST.sha256)


def make(folder: Path | None, say: Progress, archive: Archive = EMNIST) -> Made:
    """Bring the archive (536 MB) from a folder or from its publisher, and read the digits in it."""
    offered: list[Callable[[], Path]] = [partial(_from_folder, archive, folder, say)]
    offered += [partial(_from_web, archive, say) if sources.online() else sources.network_refused]
    advice = f"fetch {archive.address} by other means, put it into a folder and set TRAINOFF_DATA to it"
    return read(sources.first_of("emnist-digits", offered, advice))


def _from_folder(archive: Archive, folder: Path | None, say: Progress) -> Path:
    places = sources.folder_of_the_user("emnist-digits", folder)
    name = archive.address.rsplit("/", 1)[-1]
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is None:
        raise Unavailable(f"{places[0]} holds no {name}")
    return _checked(path, archive, say)


def _from_web(archive: Archive, say: Progress) -> Path:
    path = download(archive.address, cache.downloads("emnist-digits"), say)
    try:
        return _checked(path, archive, say)
    except Unavailable:
        path.unlink()  # or it would stand in the way of a good one
        raise


def _checked(path: Path, archive: Archive, say: Progress) -> Path:
    """The path, if the file is what was published."""
    if fingerprint.sha256(path, say) != archive.sha256:
        raise Unavailable(f"{path} is not the published archive (its SHA-256 differs)")
    return path


def read(path: Path) -> Made:
    """The digits in the archive, upright: EMNIST stores every image with rows and columns exchanged."""
    parts: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"):
                member = f"gzip/emnist-digits-{part}-ubyte.gz"
                parts[part] = readers.parse_idx(readers.unzip(archive.read(member), member), f"{member} in {path}")
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise TrainoffError(f"{path} is not the EMNIST archive ({error}); fetch it again") from error
    x_train, y_train, x_test, y_test = parts.values()
    return Made(_upright(x_train), y_train, _upright(x_test), y_test, classes=10, image=(28, 28), scale=255)


def _upright(images: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(images.transpose(0, 2, 1)).reshape(len(images), -1)
