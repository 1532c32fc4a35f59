"""The small convolutional network, in the manner of LeNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

from trainoff.errors import TrainoffError
from trainoff.models.model import DataShape
from trainoff.models.network import ACTIVATION, HIDDEN, ConvLayer, Image, Layer, Network, PoolLayer, dense_layers
from trainoff.study.schema import Key

_CHANNEL = Key("channels", int, minimum=1, maximum=10_000)
CHANNELS = Key("channels", list, [8, 16], minimum=1, maximum=20, item=_CHANNEL)  # that each convolution puts out
KERNEL = Key("kernel", int, 5, minimum=1, maximum=100)  # the height and width of the convolutions


@dataclass(frozen=True)
class Cnn(Network):
    """Convolutions, each followed by a pooling, then dense layers as in the perceptron.

    `image` is the height and width of the one-channel pictures, `channels` what each convolution puts out,
    `sizes` the dense layers after the last pooling, the classes last.
    """

    kind: ClassVar[str] = "cnn"
    keys = (HIDDEN, CHANNELS, KERNEL, ACTIVATION)
    example: ClassVar[Mapping[str, Any]] = {**Network.example, "channels": [4], "kernel": 3}

    image: tuple[int, int]
    channels: tuple[int, ...]
    kernel: int
    sizes: tuple[int, ...]
    activation: str = "relu"
    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self.image
        for number in range(1, len(self.channels) + 1):
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            if min(height, width) < 1:
                raise TrainoffError(
                    f"pictures of {self.image[0]} x {self.image[1]} are used up by convolution {number} of "
                    f"{len(self.channels)} with a kernel of {self.kernel}; take fewer channels or a smaller kernel"
                )

    @classmethod
    def build(cls, params: Mapping[str, Any], data: DataShape) -> Self:
        assert data.image
        sizes = (*params["hidden"], data.classes)
        channels = tuple(params["channels"])
        return cls(data.image, channels, params["kernel"], sizes, params["activation"], params["l2"])

    @classmethod
    def misfit(cls, data: DataShape) -> str | None:
        if data.image:
            return None
        return (
            f"{data.name} has rows of {data.features} features that are no pictures, "
            "and a cnn needs pictures; use the model mlp"
        )

    @property
    def layers(self) -> tuple[Layer, ...]:
        found: list[Layer] = []
        image: Image = (*self.image, 1)
        for number, outputs in enumerate(self.channels, 1):
            conv = ConvLayer(f"conv{number}", *image, outputs, self.kernel, self.activation)
            pool = PoolLayer(f"pool{number}", *conv.output)
            found += [conv, pool]
            image = pool.output
        return (*found, *dense_layers((prod(image), *self.sizes), self.activation))
