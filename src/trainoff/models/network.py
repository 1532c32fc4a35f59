"""What all models have in common: the shapes of their weights, how many there are, how much work a row is."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError
from trainoff.study.study import derive

if TYPE_CHECKING:
    from trainoff.models.cnn import Cnn
    from trainoff.models.mlp import Mlp


class Model(ABC):
    """A description of what is trained."""

    kind: ClassVar[str]
    l2: float

    @property
    @abstractmethod
    def classes(self) -> int:
        """How many labels there are."""

    @property
    @abstractmethod
    def shapes(self) -> list[Shape]:
        """The shapes of the weights, layer by layer: W1, b1, W2, b2 and so on."""

    @property
    @abstractmethod
    def products(self) -> int:
        """About how many multiplications one row takes on its way forward."""

    @property
    def parameters(self) -> int:
        """How many numbers training adjusts."""
        return sum(prod(shape) for shape in self.shapes)


class Network(Model):
    """A model of layers with a softmax at the end, and the cross-entropy as loss."""

    activation: str

    @property
    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """From the inputs to the scores."""

    @property
    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """What the initial weights depend on, besides the seed."""

    @property
    def shapes(self) -> list[Shape]:
        return [shape for layer in self.layers for shape in layer.shapes]

    @property
    def products(self) -> int:
        return sum(layer.products for layer in self.layers)


def check_network(network: Mlp | Cnn) -> None:
    """Refuse an activation or an L2 that does not exist."""
    if network.activation not in ACTIVATIONS:
        raise TrainoffError(f"`{network.activation}` is not an activation; use one of {', '.join(ACTIVATIONS)}")
    if not isfinite(network.l2) or network.l2 < 0:
        raise TrainoffError(f"the model's l2 is {network.l2}; give zero or a positive number")


ACTIVATIONS = ("relu", "sigmoid", "tanh")

Shape = tuple[int, ...]
Picture = tuple[int, int, int]  # height, width, channels


@dataclass(frozen=True)
class DenseLayer:
    """Every output sums all inputs. A picture is flattened first, row by row, channels last."""

    inputs: int
    outputs: int
    activation: str | None  # None: the scores before the softmax

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.inputs, self.outputs), (self.outputs,)

    @property
    def fans(self) -> tuple[int, int]:
        """How many numbers an output is summed from, and how many outputs an input goes into."""
        return self.inputs, self.outputs

    @property
    def products(self) -> int:
        """How many multiplications one row takes on its way forward."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ConvLayer:
    """A square kernel slides over the picture one pixel at a time and stays inside it."""

    height: int  # of the picture it is given
    width: int
    inputs: int  # channels
    outputs: int
    kernel: int
    activation: str

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.kernel, self.kernel, self.inputs, self.outputs), (self.outputs,)

    @property
    def fans(self) -> tuple[int, int]:
        return self.kernel**2 * self.inputs, self.kernel**2 * self.outputs

    @property
    def picture(self) -> Picture:
        """Height, width and channels of what it puts out."""
        return self.height - self.kernel + 1, self.width - self.kernel + 1, self.outputs

    @property
    def products(self) -> int:
        height, width, _ = self.picture
        return height * width * self.kernel**2 * self.inputs * self.outputs


@dataclass(frozen=True)
class PoolLayer:
    """The largest of every 2 x 2 pixels; an odd last row or column is left out."""

    height: int
    width: int
    channels: int

    shapes: ClassVar[tuple[Shape, ...]] = ()
    products: ClassVar[int] = 0

    @property
    def picture(self) -> Picture:
        return self.height // 2, self.width // 2, self.channels


Layer = DenseLayer | ConvLayer | PoolLayer


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
        if isinstance(layer, PoolLayer):
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
