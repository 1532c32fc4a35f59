"""mnist-large: four copies of MNIST with every image slightly rotated, scaled, sheared and shifted.

Pixels are computed in fixed point, so that every machine makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainoff.data import mnist
from trainoff.data.cache import combine
from trainoff.data.dataset import Data, DatasetEntry, DatasetRecipe, Progress, RawDataset
from trainoff.study.study import derive

COPIES = 4
VERSION = 1

_ROTATION = np.deg2rad(15)  # each the largest change, drawn uniformly from both sides of none
_SCALE = 0.1
_SHEAR = 0.15
_SHIFT = 1.5  # pixels
_ONE = 1 << 16  # 1.0 in fixed point
_SIDE = 28
_PADDED = 32  # one empty pixel before, three after, so that a neighbour always exists
_CHUNK = 64  # images at a time, which fit into the CPU cache


def make(parent: Data, progress: Progress) -> RawDataset:
    """Distort the training part into a training part and the test part into a test part."""
    rows = COPIES * (len(parent.y_train) + len(parent.y_test))
    x_train = copies(parent.x_train, "train", lambda done: progress("distorting mnist", done, rows))
    x_test = copies(parent.x_test, "test", lambda done: progress("distorting mnist", len(x_train) + done, rows))
    y_train, y_test = np.tile(parent.y_train, COPIES), np.tile(parent.y_test, COPIES)
    return RawDataset(x_train, y_train, x_test, y_test, classes=10, image=(_SIDE, _SIDE), scale=255)


def copies(x: NDArray[np.float32], part: str, progress: Callable[[int], None]) -> NDArray[np.uint8]:
    """Distort all rows, then all rows again, so that the first rows of the result contain no row twice."""
    out = np.empty((COPIES * len(x), x.shape[1]), np.uint8)
    for copy in range(COPIES):
        maps = _maps(len(x), derive("mnist-large", VERSION, part, copy))
        for start in range(0, len(x), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            pixels = np.rint(x[chunk] * np.float32(255)).astype(np.uint8)
            to = copy * len(x) + start
            out[to : to + len(pixels)] = warp(pixels, maps[chunk])
            if start % (64 * _CHUNK) == 0:
                progress(to)
    progress(len(out))
    return out


def _maps(rows: int, seed: int) -> NDArray[np.int32]:
    """Return for each row the affine map from a pixel of the result to a point of the image, in fixed point."""
    draw = np.random.default_rng(seed).uniform(-1, 1, (6, rows))
    angle, shear = draw[0] * _ROTATION, draw[1] * _SHEAR
    wide, high = 1 + draw[2] * _SCALE, 1 + draw[3] * _SCALE
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.array([[cos / wide, (shear * cos - sin) / high], [sin / wide, (shear * sin + cos) / high]])
    centre = (_SIDE - 1) / 2
    shift = draw[4:6] * _SHIFT + centre - matrix.sum(axis=1) * centre
    whole = np.concatenate([matrix, shift[:, None]], axis=1)
    return np.ascontiguousarray(np.rint(whole * _ONE).astype(np.int32).transpose(2, 0, 1))


def warp(pixels: NDArray[np.uint8], maps: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Apply its map to each image, with bilinear interpolation; pixels outside the image are 0."""
    rows = len(pixels)
    padded = np.zeros((rows, _PADDED, _PADDED), np.int32)
    padded[:, 1 : _SIDE + 1, 1 : _SIDE + 1] = pixels.reshape(rows, _SIDE, _SIDE)
    steps = np.arange(_SIDE, dtype=np.int32)
    place = maps[:, :, 0, None, None] * steps + (maps[:, :, 1, None] * steps + maps[:, :, 2, None])[..., None]
    place += _ONE  # the padding
    np.clip(place, 0, (_SIDE + 1) * _ONE, out=place)
    across, down = place[:, 0], place[:, 1]
    begins = np.arange(0, rows * _PADDED * _PADDED, _PADDED * _PADDED, dtype=np.int32)
    at = (down >> 16) * _PADDED + (across >> 16) + begins[:, None, None]
    across, down = (across >> 8) & 255, (down >> 8) & 255  # the fractions, in 1/256
    flat = padded.ravel()
    upper = (flat[at] << 8) + across * (flat[at + 1] - flat[at])
    at += _PADDED
    lower = (flat[at] << 8) + across * (flat[at + 1] - flat[at])
    return (((upper << 8) + down * (lower - upper) + (1 << 15)) >> 16).astype(np.uint8).reshape(rows, -1)


def _make(folder: Path | None, progress: Progress) -> RawDataset:
    from trainoff.data.catalogue import get  # which imports this module

    return make(get("mnist", folder=folder, progress=progress), progress)


ENTRY = DatasetEntry(
    "mnist-large", "four small distortions of every digit of mnist, made here", 240_000, 40_000, 784, 10
)
RECIPE = DatasetRecipe.published("mnist-large", combine("mnist-large", VERSION, mnist.IDENTITY), _make)
