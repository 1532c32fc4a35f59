"""Networks: models made of layers, and the layers with their float64 reference, written to be read, not to be fast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any, ClassVar

import numpy as np

from trainoff.errors import TrainoffError
from trainoff.models.model import Array, Labels, Model, NamedWeights, Parameter, Shape
from trainoff.models.optimizers import OPTIMIZERS
from trainoff.study.schema import Key
from trainoff.study.study import derive

ACTIVATIONS = ("relu", "sigmoid", "tanh")

_SIZE = Key("hidden", int, minimum=1, maximum=10**6)
HIDDEN = Key("hidden", list, [128], minimum=1, maximum=100, item=_SIZE)  # the sizes of the hidden layers
ACTIVATION = Key("activation", str, "relu", ACTIVATIONS)

Image = tuple[int, int, int]  # height, width, channels
Arrays = Mapping[str, Array]
Derivatives = tuple[Array, dict[str, Array]]  # of the loss, by a layer's input and by its parameters


class Layer(ABC):
    """A part of a network: a frozen dataclass with a name that no other layer of the network has."""

    name: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    @property
    def products(self) -> int:
        """Return how many multiplications one row takes on its way forward."""
        return 0

    @abstractmethod
    def forward(self, weights: Arrays, x: Array) -> Array:
        """Return the layer's output for the rows `x`; `weights` are those of the whole network."""

    @abstractmethod
    def backward(self, weights: Arrays, x: Array, output: Array, delta: Array, first: bool) -> Derivatives:
        """Return the loss's derivative by `x`, which the first layer need not compute, and by the parameters.

        `delta` is its derivative by `output`.
        """


def _weight_and_bias(name: str, shape: Shape, fans: tuple[int, int]) -> tuple[Parameter, ...]:
    return Parameter(f"{name}.weight", shape, True, fans), Parameter(f"{name}.bias", shape[-1:], False)


@dataclass(frozen=True)
class DenseLayer(Layer):
    """Every output sums all inputs. A picture is flattened first, row by row, channels last."""

    name: str
    inputs: int
    outputs: int
    activation: str | None  # None: the scores before the softmax

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return _weight_and_bias(self.name, (self.inputs, self.outputs), (self.inputs, self.outputs))

    @property
    def products(self) -> int:
        return self.inputs * self.outputs

    def forward(self, weights: Arrays, x: Array) -> Array:
        sums: Array = x.reshape(len(x), -1) @ weights[f"{self.name}.weight"]
        sums += weights[f"{self.name}.bias"]
        return _activate(self.activation, sums)

    def backward(self, weights: Arrays, x: Array, output: Array, delta: Array, first: bool) -> Derivatives:
        delta = _before_activation(self.activation, output, delta)
        gradient = {f"{self.name}.weight": x.reshape(len(x), -1).T @ delta, f"{self.name}.bias": delta.sum(axis=0)}
        return (delta if first else delta @ weights[f"{self.name}.weight"].T), gradient


@dataclass(frozen=True)
class ConvLayer(Layer):
    """A square kernel slides over the picture one pixel at a time and stays inside it."""

    name: str
    height: int  # of the input
    width: int
    inputs: int  # channels
    outputs: int
    kernel: int
    activation: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        area = self.kernel**2
        shape = (self.kernel, self.kernel, self.inputs, self.outputs)
        return _weight_and_bias(self.name, shape, (area * self.inputs, area * self.outputs))

    @property
    def output(self) -> Image:
        return self.height - self.kernel + 1, self.width - self.kernel + 1, self.outputs

    @property
    def products(self) -> int:
        height, width, _ = self.output
        return height * width * self.kernel**2 * self.inputs * self.outputs

    def forward(self, weights: Arrays, x: Array) -> Array:
        sums: Array = self._patches(x) @ weights[f"{self.name}.weight"].reshape(-1, self.outputs)
        sums = sums.reshape(len(x), *self.output)
        sums += weights[f"{self.name}.bias"]
        return _activate(self.activation, sums)

    def backward(self, weights: Arrays, x: Array, output: Array, delta: Array, first: bool) -> Derivatives:
        delta = _before_activation(self.activation, output, delta)
        columns, kernel = delta.reshape(-1, self.outputs), weights[f"{self.name}.weight"]
        gradient = {
            f"{self.name}.weight": (self._patches(x).T @ columns).reshape(kernel.shape),
            f"{self.name}.bias": columns.sum(axis=0),
        }
        return (delta if first else self._unpatch(kernel, delta)), gradient

    def _patches(self, x: Array) -> Array:
        """Return what lies under the kernel at each of its positions, as the rows of a matrix."""
        pictures = x.reshape(len(x), self.height, self.width, self.inputs)
        windows = np.lib.stride_tricks.sliding_window_view(pictures, (self.kernel, self.kernel), axis=(1, 2))
        return windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, self.kernel**2 * self.inputs)

    def _unpatch(self, kernel: Array, delta: Array) -> Array:
        """Return the derivative by each pixel: the sum over the kernel's positions that cover it."""
        result = np.zeros((len(delta), self.height, self.width, self.inputs), delta.dtype)
        height, width, _ = self.output
        for row in range(self.kernel):
            for column in range(self.kernel):
                result[:, row : row + height, column : column + width] += delta @ kernel[row, column].T
        return result


@dataclass(frozen=True)
class PoolLayer(Layer):
    """The largest of every 2 x 2 pixels; an odd last row or column is left out."""

    name: str
    height: int  # of the input
    width: int
    channels: int

    @property
    def output(self) -> Image:
        return self.height // 2, self.width // 2, self.channels

    def forward(self, weights: Arrays, x: Array) -> Array:
        height, width, _ = self.output
        rows = np.maximum(x[:, 0 : 2 * height : 2], x[:, 1 : 2 * height : 2])
        return np.maximum(rows[:, :, 0 : 2 * width : 2], rows[:, :, 1 : 2 * width : 2])

    def backward(self, weights: Arrays, x: Array, output: Array, delta: Array, first: bool) -> Derivatives:
        """Pass each output's derivative to the pixel that it was taken from, the first of equal ones."""
        height, width, channels = self.output
        blocks = x[:, : 2 * height, : 2 * width].reshape(len(x), height, 2, width, 2, channels)
        blocks = blocks.transpose(0, 1, 3, 5, 2, 4).reshape(-1, 4)
        largest = np.zeros_like(blocks)
        largest[np.arange(len(blocks)), blocks.argmax(axis=1)] = delta.reshape(-1)
        spread = largest.reshape(len(x), height, width, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
        result = np.zeros_like(x)
        result[:, : 2 * height, : 2 * width] = spread.reshape(len(x), 2 * height, 2 * width, channels)
        return result, {}


def dense_layers(sizes: tuple[int, ...], activation: str) -> tuple[DenseLayer, ...]:
    """Return dense layers from the inputs to the scores, each but the last with the activation."""
    last = len(sizes) - 1
    return tuple(
        DenseLayer(f"dense{number}", inputs, outputs, None if number == last else activation)
        for number, (inputs, outputs) in enumerate(pairwise(sizes), 1)
    )


class Network(Model):
    """A model of layers, the last of them dense, with a softmax at the end and the cross-entropy as loss."""

    keys: ClassVar[tuple[Key, ...]] = (HIDDEN, ACTIVATION)
    example: ClassVar[Mapping[str, Any]] = {"hidden": [16], "activation": "relu"}
    activation: str

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise TrainoffError(f"`{self.activation}` is not an activation; use one of {', '.join(ACTIVATIONS)}")
        if not isfinite(self.l2) or self.l2 < 0:
            raise TrainoffError(f"the model's l2 is {self.l2}; give zero or a positive number")

    @classmethod
    def contract_cases(cls, thorough: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for optimizer, activation in zip(OPTIMIZERS, ACTIVATIONS, strict=True):
            changes = {"optimizer": optimizer, "schedule": "one-cycle", "activation": activation}
            yield f"{optimizer}, one-cycle, {activation}", changes
        yield "l2", {"l2": 0.01}

    @property
    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers from the inputs to the scores."""

    @property
    def classes(self) -> int:
        last = self.layers[-1]
        assert isinstance(last, DenseLayer)
        return last.outputs

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for layer in self.layers for parameter in layer.parameters)

    @property
    def products(self) -> int:
        """Return how many multiplications one row takes on its way forward."""
        return sum(layer.products for layer in self.layers)

    @property
    def operations(self) -> float:
        return 6.0 * self.products  # two per product on the way forward, and twice that on the way back

    def initial_weights(self, seed: int) -> NamedWeights:
        """Return normal weights by He (relu) or Glorot, and zero biases. They do not depend on the L2 term."""
        form = [value for name, value in vars(self).items() if name != "l2"]
        rng = np.random.default_rng(derive("init", self.kind, *form, seed))
        return self.named([self._initial(parameter, rng) for parameter in self.parameters])

    def _initial(self, parameter: Parameter, rng: np.random.Generator) -> Array:
        if parameter.fans is None:
            return np.zeros(parameter.shape, np.float32)
        inputs, outputs = parameter.fans
        deviation = sqrt(2 / inputs) if self.activation == "relu" else sqrt(2 / (inputs + outputs))
        return (rng.standard_normal(parameter.shape) * deviation).astype(np.float32)

    def scores(self, weights: Arrays, x: Array) -> Array:
        return self._outputs(weights, x)[-1]

    def gradient(self, weights: Arrays, x: Array, y: Labels) -> tuple[float, dict[str, Array]]:
        outputs = self._outputs(weights, x)
        log_probabilities = log_softmax(outputs[-1])
        rows = np.arange(len(y))
        loss = -log_probabilities[rows, y].mean()
        delta = np.exp(log_probabilities)
        delta[rows, y] -= 1
        delta /= len(y)
        gradient: dict[str, Array] = {}
        regularised = set(self.regularised)
        for index, layer in reversed(list(enumerate(self.layers))):
            delta, found = layer.backward(weights, outputs[index], outputs[index + 1], delta, first=index == 0)
            for name in [name for name in found if name in regularised]:
                loss += self.l2 / 2 * np.sum(weights[name] ** 2)
                found[name] += self.l2 * weights[name]
            gradient |= found
        return float(loss), gradient

    def _outputs(self, weights: Arrays, x: Array) -> list[Array]:
        """Return the input and each layer's output."""
        found = [x]
        for layer in self.layers:
            found.append(layer.forward(weights, found[-1]))
        return found


def log_softmax(scores: Array) -> Array:
    shifted: Array = scores - scores.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _activate(name: str | None, sums: Array) -> Array:
    """Apply the activation in place. The sigmoid is computed by tanh, which cannot overflow."""
    if name == "relu":
        np.maximum(sums, 0, out=sums)
    elif name == "tanh":
        np.tanh(sums, out=sums)
    elif name == "sigmoid":
        sums /= 2
        np.tanh(sums, out=sums)
        sums += 1
        sums /= 2
    return sums


def _before_activation(name: str | None, output: Array, delta: Array) -> Array:
    """Return the loss's derivative by the weighted sums, from that by the activation's output."""
    delta = delta.reshape(output.shape)
    if name == "relu":
        return delta * (output > 0).astype(output.dtype)
    if name == "tanh":
        return delta * (1 - output**2)
    return delta * (output * (1 - output)) if name == "sigmoid" else delta
