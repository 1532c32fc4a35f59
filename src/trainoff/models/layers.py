"""The layers that networks are described with; they belong to no framework.

A picture is [height, width, channels]. A layer has weights of the shapes it names, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

ACTIVATIONS = ("relu", "sigmoid", "tanh")

Shape = tuple[int, ...]
Picture = tuple[int, int, int]  # height, width, channels


@dataclass(frozen=True)
class Dense:
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
class Conv:
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
class Pool:
    """The largest of every 2 x 2 pixels; an odd last row or column is left out."""

    height: int
    width: int
    channels: int

    shapes: ClassVar[tuple[Shape, ...]] = ()
    products: ClassVar[int] = 0

    @property
    def picture(self) -> Picture:
        return self.height // 2, self.width // 2, self.channels


Layer = Dense | Conv | Pool
