"""emnist-digits: 280,000 handwritten digits, one of the datasets in the EMNIST archive."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import cache, readers, sources
from trainoff.data.dataset import DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.data.sources import Unavailable, download
from trainoff.errors import TrainoffError


@dataclass(frozen=True)
class Archive:
    """A published zip archive: its address and its SHA-256."""

    address: str
    sha256: str


EMNIST = Archive(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)
IDENTITY = cache.combine("emnist-digits", 1, EMNIST.sha256)


def make(folder: Path | None, progress: Progress, archive: Archive = EMNIST) -> RawDataset:
    """Get the archive (536 MB) from a folder or from its publisher, and read its digits."""

    def from_folder() -> Path:
        path = sources.find_user_file("emnist-digits", folder, archive.address.rsplit("/", 1)[-1])
        return _checked(path, archive, progress)

    def from_web() -> Path:
        path = download(archive.address, cache.downloads("emnist-digits"), progress)
        try:
            return _checked(path, archive, progress)
        except Unavailable:
            path.unlink()  # so that it is downloaded again
            raise

    advice = f"fetch {archive.address} by other means, put it into a folder and set TRAINOFF_DATA to it"
    return read(sources.first_of("emnist-digits", from_folder, [from_web], advice))


def _checked(path: Path, archive: Archive, progress: Progress) -> Path:
    """Return the path if the file has the published SHA-256; raise `Unavailable` if not."""
    if cache.sha256(path, progress) != archive.sha256:
        raise Unavailable(f"{path} is not the published archive (its SHA-256 differs)")
    return path


def read(path: Path) -> RawDataset:
    """Read the digits; EMNIST stores every image with rows and columns exchanged, which is undone."""
    parts: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"):
                member = f"gzip/emnist-digits-{part}-ubyte.gz"
                parts[part] = readers.parse_idx(readers.unzip(archive.read(member), member), f"{member} in {path}")
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise TrainoffError(f"{path} is not the EMNIST archive ({error}); fetch it again") from error
    x_train, y_train, x_test, y_test = parts.values()
    return RawDataset(_upright(x_train), y_train, _upright(x_test), y_test, classes=10, image=(28, 28), scale=255)


def _upright(images: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(images.transpose(0, 2, 1)).reshape(len(images), -1)


ENTRY = DatasetEntry("emnist-digits", "handwritten digits of EMNIST, a download of 536 MB", 240_000, 40_000, 784, 10)
RECIPE = DatasetRecipe.published("emnist-digits", IDENTITY, make)
