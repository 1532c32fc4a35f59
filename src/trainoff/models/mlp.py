"""The multi-layer perceptron as a description that belongs to no framework."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from trainoff.errors import TrainoffError
from trainoff.models.network import DenseLayer, Layer, Network, check_network


@dataclass(frozen=True)
class Mlp(Network):
    """Fully connected layers with one activation, a softmax at the end and the cross-entropy as loss.

    `sizes` runs from the inputs to the classes: (784, 800, 10). `l2` adds l2/2 times the squared weights,
    biases left out, to the loss.
    """

    kind: ClassVar[str] = "mlp"

    sizes: tuple[int, ...]
    activation: str = "relu"
    l2: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or any(type(size) is not int or size < 1 for size in self.sizes):
            raise TrainoffError(
                f"the model's sizes are {self.sizes!r}; give two or more whole numbers above zero, "
                "from the inputs to the classes, such as (784, 800, 10)"
            )
        check_network(self)

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """From the inputs to the scores."""
        last = len(self.sizes) - 2
        return tuple(
            DenseLayer(inputs, outputs, None if index == last else self.activation)
            for index, (inputs, outputs) in enumerate(pairwise(self.sizes))
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """What the initial weights depend on, besides the seed."""
        return self.kind, self.sizes, self.activation
