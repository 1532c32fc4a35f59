"""What all models have in common: the shapes of their weights, how many there are, how much work a row is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite, prod
from typing import TYPE_CHECKING, ClassVar

from trainoff.errors import TrainoffError
from trainoff.models.layers import ACTIVATIONS, Layer, Shape

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
