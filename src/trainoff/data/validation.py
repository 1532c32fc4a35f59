"""Rows to tune on: the training part of a dataset divided again, so that its test part stays unseen.

`validation-of:mnist` is a dataset of its own. Its training part and its test part are both made of the training rows
of mnist, and no file of it holds a test row of mnist: whoever trains on it cannot look at one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trainoff.data.dataset import Data, Made, Progress, Recipe
from trainoff.data.fingerprint import combine
from trainoff.data.sparse import Csr, Selection
from trainoff.data.split import hold_out

PREFIX = "validation-of:"
_VERSION = 1


def validation_of(name: str) -> str:
    """The name of the dataset on which parameters for this one are tuned."""
    return f"{PREFIX}{name}"


def recipe(parent: Recipe, get: Callable[[Progress], Data]) -> Recipe:
    """How to make it of the dataset that `get` brings."""
    return Recipe(
        name=validation_of(parent.name),
        title=validation_of(parent.title),
        key=f"validation-of-{parent.key}",
        identity=combine("validation", _VERSION, parent.identity),
        make=lambda _, say: divide(get(say)),
    )


def divide(parent: Data) -> Made:
    """Hold out a fifth of the training rows of every class; the features are scaled already."""
    x, labels = parent.x_train, np.asarray(parent.y_train)
    train, held = hold_out(labels)
    parts = [Selection(x, rows) if isinstance(x, Csr) else x[rows] for rows in (train, held)]
    made = Made(parts[0], labels[train], parts[1], labels[held], parent.classes, image=parent.image)
    return replace(made, facts=dict(parent.facts))
