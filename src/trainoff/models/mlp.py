"""The multi-layer perceptron as a description that belongs to no framework."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, prod
from typing import ClassVar

from trainoff.errors import TrainoffError

ACTIVATIONS = ("relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class Mlp:
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
        if self.activation not in ACTIVATIONS:
            raise TrainoffError(f"`{self.activation}` is not an activation; use one of {', '.join(ACTIVATIONS)}")
        if not isfinite(self.l2) or self.l2 < 0:
            raise TrainoffError(f"the model's l2 is {self.l2}; give zero or a positive number")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the weights, layer by layer: W1, b1, W2, b2 and so on."""
        return [shape for inputs, outputs in pairwise(self.sizes) for shape in ((inputs, outputs), (outputs,))]

    @property
    def parameters(self) -> int:
        """How many numbers training adjusts."""
        return sum(prod(shape) for shape in self.shapes)
