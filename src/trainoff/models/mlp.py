"""The multi-layer perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from trainoff.errors import TrainoffError
from trainoff.models.model import DataShape
from trainoff.models.network import ACTIVATIONS, DenseLayer, Network, dense_layers
from trainoff.models.optimizers import OPTIMIZERS, SCHEDULES


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
        super().__post_init__()

    @classmethod
    def build(cls, params: Mapping[str, Any], data: DataShape) -> Self:
        return cls((data.features, *params["hidden"], data.classes), params["activation"], params["l2"])

    @classmethod
    def contract_cases(cls, thorough: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if not thorough:
            yield from super().contract_cases(thorough)
            return
        for optimizer, schedule, activation in itertools.product(OPTIMIZERS, SCHEDULES, ACTIVATIONS):
            changes = {"optimizer": optimizer, "schedule": schedule, "activation": activation}
            yield f"{optimizer}, {schedule}, {activation}", changes
        yield "l2", {"l2": 0.01}

    @property
    def layers(self) -> tuple[DenseLayer, ...]:
        return dense_layers(self.sizes, self.activation)
