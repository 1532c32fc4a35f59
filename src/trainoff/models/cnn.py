"""The small convolutional network, in the manner of LeNet, as a description that belongs to no framework."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from trainoff.errors import TrainoffError
from trainoff.models.network import ConvLayer, DenseLayer, Layer, Network, Picture, PoolLayer, check_network


@dataclass(frozen=True)
class Cnn(Network):
    """Convolutions, each followed by a pooling, then dense layers as in the perceptron.

    `image` is the height and width of the one-channel pictures, `channels` what each convolution puts out,
    `sizes` the dense layers after the last pooling, the classes last.
    """

    kind: ClassVar[str] = "cnn"

    image: tuple[int, int]
    channels: tuple[int, ...]
    kernel: int
    sizes: tuple[int, ...]
    activation: str = "relu"
    l2: float = 0.0

    def __post_init__(self) -> None:
        check_network(self)
        height, width = self.image
        for index, _ in enumerate(self.channels, 1):
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            if min(height, width) < 1:
                raise TrainoffError(
                    f"pictures of {self.image[0]} x {self.image[1]} are used up by convolution {index} of "
                    f"{len(self.channels)} with a kernel of {self.kernel}; take fewer channels or a smaller kernel"
                )

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    @property
    def layers(self) -> tuple[Layer, ...]:
        found: list[Layer] = []
        picture: Picture = (*self.image, 1)
        for outputs in self.channels:
            conv = ConvLayer(*picture, outputs, self.kernel, self.activation)
            pool = PoolLayer(*conv.picture)
            found += [conv, pool]
            picture = pool.picture
        sizes = (prod(picture), *self.sizes)
        last = len(sizes) - 2
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            found.append(DenseLayer(inputs, outputs, None if index == last else self.activation))
        return tuple(found)

    @property
    def identity(self) -> tuple[object, ...]:
        return self.kind, self.image, self.channels, self.kernel, self.sizes, self.activation
