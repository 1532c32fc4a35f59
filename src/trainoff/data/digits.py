"""digits: 1,797 small digits that come with scikit-learn, for trials that must work offline."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from trainoff.data import readers
from trainoff.data.cache import combine
from trainoff.data.dataset import DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.data.split import hold_out
from trainoff.errors import TrainoffError

SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # of the uncompressed table
IDENTITY = combine("digits", 1, SHA256)


def make(folder: Path | None, progress: Progress) -> RawDataset:
    """Read the table from the installed package without importing it, and hold out a fifth."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise TrainoffError("digits comes with scikit-learn, which is not installed; run: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = readers.read_unzipped(path)
    if hashlib.sha256(table).hexdigest() != SHA256:
        raise TrainoffError(f"{path} is not the table it should be; run: pip install --force-reinstall scikit-learn")
    values = np.loadtxt(table.decode().splitlines(), delimiter=",", dtype=np.float32)
    x, y = values[:, :64], values[:, 64].astype(np.int64)
    train, test = hold_out(y)
    return RawDataset(x[train], y[train], x[test], y[test], classes=10, image=(8, 8), scale=16)


ENTRY = DatasetEntry("digits", "digits of 8 x 8 pixels that come with scikit-learn; always offline", 1_437, 360, 64, 10)
RECIPE = DatasetRecipe.published("digits", IDENTITY, make)
