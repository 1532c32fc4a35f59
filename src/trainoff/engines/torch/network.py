"""Networks and logistic regression in torch: the gradient by autograd, the update by torch's fused kernels.

Both are called without torch's modules and optimiser classes, which nearly double the time of a small network's step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainoff.data import Csr, Matrix
from trainoff.engines.contract import Job
from trainoff.models import BETA1, BETA2, EPSILON, ConvLayer, DenseLayer, Network, PoolLayer, Weights


@dataclass(frozen=True)
class Batch:
    """Rows and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class SparseBatch:
    """The non-zeros of some rows, each with its row of the batch, and the labels.

    Non-zeros of the row after the last belong to no row and only pad the batch.
    """

    columns: Tensor
    values: Tensor
    owners: Tensor
    y: Tensor


class DenseRows:
    """Rows of a matrix; every batch is gathered into the same memory."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y
        self._buffer = x.new_empty(0)

    def take(self, rows: Tensor) -> Batch:
        """Return the batch of these rows, which the next call overwrites."""
        if len(rows) > len(self._buffer):
            self._buffer = self._x.new_empty(len(rows), self._x.shape[1])
        x = torch.index_select(self._x, 0, rows, out=self._buffer[: len(rows)])
        return Batch(x, self._y.index_select(0, rows))

    def all(self) -> Batch:
        """Return all rows."""
        return Batch(self._x, self._y)


class SparseRows:
    """Sparse rows. With `nonzeros`, all batches are padded to that size, which must suffice for each."""

    def __init__(self, x: tuple[Tensor, Tensor, Tensor], y: Tensor) -> None:
        self.starts, self._columns, self._values = x
        self._y = y
        self.nonzeros: int | None = None

    def take(self, rows: Tensor) -> SparseBatch:
        begins = self.starts.index_select(0, rows)
        counts = self.starts.index_select(0, rows + 1) - begins
        ends = counts.cumsum(0)
        size = int(ends[-1]) if self.nonzeros is None else self.nonzeros
        # An additional row after the last owns the padding.
        counts = torch.cat([counts, size - ends[-1:]])
        owners = torch.repeat_interleave(counts, output_size=size)
        shifts = torch.cat([begins - ends + counts[:-1], -ends[-1:]])
        places = shifts.index_select(0, owners) + torch.arange(size, device=owners.device)
        columns = self._columns.index_select(0, places).long()
        return SparseBatch(columns, self._values.index_select(0, places), owners, self._y.index_select(0, rows))

    def all(self) -> SparseBatch:
        """Return all rows."""
        return self.take(torch.arange(len(self._y), device=self._y.device))


def rows_of(x: Matrix, y: NDArray[np.integer[Any]], device: str) -> DenseRows | SparseRows:
    """Return the rows on a device; on the CPU neither features nor labels are copied."""
    if isinstance(x, Csr):
        x = x.compact()
        return SparseRows(
            (on_device(x.starts, device), on_device(x.columns, device), on_device(x.values, device)),
            on_device(y, device),
        )
    return DenseRows(on_device(x, device), on_device(y, device))


def on_device(array: NDArray[Any], device: str) -> Tensor:
    """Return the array on a device, without torch's warning that mapped arrays are read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)  # they are only read
        return torch.from_numpy(array).to(device)


ACTIVATIONS = {"relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}  # in place

Part = Callable[[Tensor], Tensor]
Gradients = Callable[[Batch], tuple[Tensor, list[Tensor]]]  # the loss of a batch, and its gradient as vectors
Rate = Any  # a float, or a vector of one number on the GPU


class TorchNetwork:
    """The weights in torch's layout, the layers and the optimiser."""

    def __init__(self, job: Job, device: str) -> None:
        self.parameters = [torch.nn.Parameter(to_torch(part, device)) for part in job.weights]
        self.flat = [part.detach().view(-1) for part in self.parameters]
        self._parts = make_parts(job.model, self.parameters)
        self._l2 = job.model.l2
        groups = make_groups(job.model)
        self._regularised = groups[0].of(self.flat)
        self._update = make_update(job.params, self.flat, groups)
        self.memory = self._update.state
        self.state = [*self.flat, *self.memory]  # all that a step changes
        self.gradients: Gradients = self._local_gradients  # data-parallel workers replace it by synchronised gradients

    def train_step(self, batch: Batch, rate: Rate) -> Tensor:
        """Make one step; return the loss before it."""
        loss, gradient = self.gradients(batch)
        if self._l2:
            for weight in self._regularised:
                loss = loss + self._l2 / 2 * weight.dot(weight)
        self._update.step(gradient, rate)
        return loss

    def _local_gradients(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        loss = self.loss(batch)
        # As vectors, because a gradient need not lie in memory in the order of its weights.
        return loss.detach(), [part.reshape(-1) for part in torch.autograd.grad(loss, self.parameters)]

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch, without the L2 term."""
        return F.cross_entropy(self._scores(batch.x), batch.y)

    def predict(self, batch: Batch) -> Tensor:
        """Return the class of each row."""
        return self._scores(batch.x).argmax(1)

    def weights(self) -> Weights:
        """Return the weights in the order and layout of the model."""
        return [to_numpy(part.detach()) for part in self.parameters]

    def _scores(self, x: Tensor) -> Tensor:
        for part in self._parts:
            x = part(x)
        return x


def to_torch(part: NDArray[Any], device: str) -> Tensor:
    """Return a copy in torch's fastest layout: outputs first, so that the weights of an output are adjacent."""
    axes = {4: (3, 0, 1, 2), 2: (1, 0), 1: (0,)}[part.ndim]
    return torch.tensor(np.ascontiguousarray(part.transpose(axes)), device=device)


def to_numpy(part: Tensor) -> NDArray[np.float32]:
    """Return the weights in the layout of the model: inputs first."""
    axes = {4: (1, 2, 3, 0), 2: (1, 0), 1: (0,)}[part.ndim]
    found: NDArray[np.float32] = part.cpu().numpy().transpose(axes)
    return found


def make_parts(model: Network, weights: Sequence[Tensor]) -> list[Part]:
    """Return the network as functions, to be called one after the other.

    Pictures keep their channels last in memory all the way, so that flattening them costs nothing.
    """
    named = model.by_name(weights)
    return [
        part
        for layer in model.layers
        for part in LAYER_BUILDERS[type(layer).__name__](layer, *(named[each.name] for each in layer.parameters))
    ]


def dense(layer: DenseLayer, weight: Tensor, bias: Tensor) -> list[Part]:
    """Return a dense layer on rows, or on pictures in the order of their memory: row by row, channels last."""

    def multiply(x: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1).reshape(-1, layer.inputs)
        return F.linear(x, weight, bias)

    return [multiply, ACTIVATIONS[layer.activation]] if layer.activation else [multiply]


def convolution(layer: ConvLayer, kernel: Tensor, bias: Tensor) -> list[Part]:
    """Return a convolution of pictures, or of rows that are pictures.

    The kernel is outputs, height, width, inputs.
    """

    def convolve(x: Tensor) -> Tensor:
        if x.ndim == 2:
            x = x.view(-1, layer.height, layer.width, layer.inputs).permute(0, 3, 1, 2)
        return F.conv2d(x, kernel.permute(0, 3, 1, 2), bias)

    return [convolve, ACTIVATIONS[layer.activation]]


def pooling(layer: PoolLayer) -> list[Part]:
    return [lambda x: F.max_pool2d(x, 2)]


LAYER_BUILDERS: Mapping[str, Callable[..., list[Part]]] = {
    "DenseLayer": dense,
    "ConvLayer": convolution,
    "PoolLayer": pooling,
}


@dataclass(frozen=True)
class Group:
    """The parameters that torch's kernels update in one call, by their numbers, and their weight decay."""

    numbers: tuple[int, ...]
    decay: float

    def of(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the group's parts of those of all parameters; none if there are none."""
        return [parts[number] for number in self.numbers] if parts else []


def make_groups(model: Network) -> list[Group]:
    """Return one group, or one with and one without weight decay."""
    everything = range(len(model.parameters))
    if not model.l2:
        return [Group(tuple(everything), 0.0)]
    decayed = [number for number in everything if model.parameters[number].regularised]
    rest = [number for number in everything if number not in decayed]
    return [Group(tuple(decayed), model.l2), Group(tuple(rest), 0.0)]


class TorchSgd:
    """Gradient descent, with a velocity if there is a momentum."""

    def __init__(self, weights: list[Tensor], groups: Sequence[Group], momentum: float) -> None:
        self._momentum = momentum
        self.state = [torch.zeros_like(part) for part in weights] if momentum else []
        self._groups = [(group, group.of(weights), group.of(self.state)) for group in groups]

    def step(self, gradient: list[Tensor], rate: Rate) -> None:
        for group, weights, velocity in self._groups:
            torch._fused_sgd_(
                weights,
                group.of(gradient),
                velocity,
                weight_decay=group.decay,
                momentum=self._momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,  # the velocity begins at zero
            )


class TorchAdam:
    """Adam; the number of its steps is a tensor, so that a captured step increments it."""

    def __init__(self, weights: list[Tensor], groups: Sequence[Group]) -> None:
        mean = [torch.zeros_like(part) for part in weights]
        square = [torch.zeros_like(part) for part in weights]
        self._steps = torch.zeros((), device=weights[0].device)
        self.state = [*mean, *square, self._steps]
        self._groups = [
            (group, group.of(weights), group.of(mean), group.of(square), [self._steps] * len(group.numbers))
            for group in groups
        ]

    def step(self, gradient: list[Tensor], rate: Rate) -> None:
        self._steps += 1
        for group, weights, mean, square, counts in self._groups:
            torch._fused_adam_(
                weights,
                group.of(gradient),
                mean,
                square,
                [],
                counts,
                lr=rate,
                beta1=BETA1,
                beta2=BETA2,
                weight_decay=group.decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )


def make_update(params: Mapping[str, Any], weights: list[Tensor], groups: Sequence[Group]) -> TorchSgd | TorchAdam:
    """Return the optimiser of the job, for weights given as vectors."""
    if params["optimizer"] == "adam":
        return TorchAdam(weights, groups)
    return TorchSgd(weights, groups, params["momentum"] if params["optimizer"] == "momentum" else 0.0)


class TorchLogistic:
    """Logistic regression, with its gradient written out."""

    def __init__(self, job: Job, device: str) -> None:
        self.state = [torch.tensor(part, device=device) for part in job.weights]  # all that a step changes
        self._weights, self._bias = self.state

    def train_step(self, batch: SparseBatch, rate: Rate) -> Tensor:
        """Make one step; return the loss before it."""
        z = self._scores(batch)
        y = batch.y.to(z.dtype)
        loss = F.binary_cross_entropy_with_logits(z, y)
        moves = F.pad(y.sub_(z.sigmoid_()).mul_(rate).div_(len(y)), (0, 1))  # padding has no effect
        self._weights.scatter_add_(0, batch.columns, moves.index_select(0, batch.owners).mul_(batch.values))
        self._bias.add_(moves.sum())
        return loss

    def predict(self, batch: SparseBatch) -> Tensor:
        """Return the class of each row: 1 if its log-odds are positive."""
        return self._scores(batch) > 0

    def weights(self) -> Weights:
        """Return the weights and the bias."""
        return [part.cpu().numpy() for part in self.state]

    def _scores(self, batch: SparseBatch) -> Tensor:
        """Return the log-odds of each row."""
        products = self._weights.index_select(0, batch.columns).mul_(batch.values)
        sums = products.new_zeros(len(batch.y) + 1).scatter_add_(0, batch.owners, products)
        return sums[:-1].add_(self._bias)


BUILDERS: Mapping[str, type[TorchNetwork] | type[TorchLogistic]] = {"Network": TorchNetwork, "Logreg": TorchLogistic}
