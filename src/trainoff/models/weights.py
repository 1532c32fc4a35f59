"""The weights of a network: where they start, as one long vector, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.models.layers import Pool
from trainoff.models.network import Model, Network
from trainoff.study.seeds import derive

Array = NDArray[np.floating[Any]]
Weights = list[Array]  # [W1, b1, W2, b2, ...] in the shapes that the model names


def initial_weights(model: Model, seed: int) -> Weights:
    """The float32 weights from which every engine starts.

    Of a network normal by He (relu) or Glorot, biases zero; of a logistic regression all zero.
    """
    if not isinstance(model, Network):
        return [np.zeros(shape, np.float32) for shape in model.shapes]
    rng = np.random.default_rng(derive("init", *model.identity, seed))
    weights: Weights = []
    for layer in model.layers:
        if isinstance(layer, Pool):
            continue
        inputs, outputs = layer.fans
        spread = sqrt(2 / inputs) if model.activation == "relu" else sqrt(2 / (inputs + outputs))
        matrix, bias = layer.shapes
        weights += [(rng.standard_normal(matrix) * spread).astype(np.float32), np.zeros(bias, np.float32)]
    return weights


def flatten(weights: Sequence[Array]) -> Array:
    """All weights as one new vector of the same type, in the order of the list."""
    return np.concatenate([part.ravel() for part in weights])


def unflatten(model: Model, flat: Array) -> Weights:
    """The vector cut into the model's weights: views, so a change in one is seen in the other."""
    if flat.shape != (model.parameters,):
        raise ValueError(f"expected a vector of {model.parameters} weights, got the shape {flat.shape}")
    ends = np.cumsum([prod(shape) for shape in model.shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), model.shapes, strict=True)]


def fingerprint(weights: Sequence[Array]) -> str:
    """The SHA-256 of the weights as little-endian float32: equal for equal weights on every machine."""
    digest = hashlib.sha256()
    for part in weights:
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    return digest.hexdigest()
