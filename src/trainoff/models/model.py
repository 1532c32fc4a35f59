"""The base of every model family: its study keys, its named parameters, and what the float64 reference computes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from trainoff.data.dataset import Csr, Data, Matrix
from trainoff.models.optimizers import OPTIMIZERS
from trainoff.study.schema import Key

Array = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Shape = tuple[int, ...]
Weights = Sequence[Array]  # one array per parameter, in the order of the model's `parameters`
Part = TypeVar("Part")


@dataclass(frozen=True)
class Parameter:
    """An array that training adjusts."""

    name: str  # such as "dense1.weight"
    shape: Shape
    regularised: bool  # whether the L2 term counts it
    fans: tuple[int, int] | None = None  # terms per output and outputs per input, if it starts from random values


class NamedWeights(list[Array]):
    """The weights of a model: a list in the order of its parameters whose arrays can also be had by name."""

    def __init__(self, names: Iterable[str], arrays: Iterable[Array]) -> None:
        super().__init__(arrays)
        self.names = tuple(names)
        if len(self.names) != len(self):
            raise ValueError(f"the model has {len(self.names)} parameters, got {len(self)} arrays")

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> list[Array]: ...
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def items(self) -> Iterator[tuple[str, Array]]:
        """Return each parameter's name with its array."""
        return zip(self.names, self, strict=True)


@dataclass(frozen=True)
class DataShape:
    """What decides the size of a model for some data, and whether it fits."""

    name: str
    features: int
    classes: int
    image: tuple[int, int] | None = None  # height and width, where a row is a picture
    nonzeros: int | None = None  # of a row, about; None where rows are dense

    @staticmethod
    def of(data: Data) -> DataShape:
        rows, features = data.x_train.shape
        nonzeros = round(data.x_train.nonzeros / rows) if isinstance(data.x_train, Csr) else None
        return DataShape(data.name, features, data.classes, data.image, nonzeros)

    @property
    def sparse(self) -> bool:
        return self.nonzeros is not None


class Model(ABC):
    """A model of known size; the class is its family, as the registry and the study know it.

    A subclass is a frozen dataclass. It belongs to no framework: engines build their own from it.
    """

    kind: ClassVar[str]  # the family's name in studies and records
    keys: ClassVar[tuple[Key, ...]] = ()  # of [params], besides those that all families have
    defaults: ClassVar[Mapping[str, Any]] = {}  # of keys that all families have, where they differ
    optimizers: ClassVar[tuple[str, ...]] = OPTIMIZERS
    sparse: ClassVar[bool] = False  # whether it takes sparse rows
    l2: float

    # A small model and dataset for the contract tests of engines.
    example: ClassVar[Mapping[str, Any]] = {}
    example_data: ClassVar[str] = "digits"

    @classmethod
    @abstractmethod
    def contract_cases(cls, thorough: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return the training parameters with which an engine must agree with the reference, each with a title."""

    @classmethod
    @abstractmethod
    def build(cls, params: Mapping[str, Any], data: DataShape) -> Self:
        """Return the model of these study parameters for such data."""

    @classmethod
    def misfit(cls, data: DataShape) -> str | None:
        """Return why a model of this family cannot train on such data, or None if it can."""
        return None

    @property
    @abstractmethod
    def classes(self) -> int:
        """Return the number of labels."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the arrays that training adjusts, in the order in which weights travel."""

    @property
    @abstractmethod
    def operations(self) -> float:
        """Return about how many operations it takes to train on one row, for estimates."""

    @abstractmethod
    def scores(self, weights: Mapping[str, Array], x: Matrix) -> Array:
        """Return the scores before the softmax, one row per row of `x`, in the type of the weights."""

    @abstractmethod
    def gradient(self, weights: Mapping[str, Array], x: Matrix, y: Labels) -> tuple[float, dict[str, Array]]:
        """Return the mean loss with the L2 term, and its gradient by parameter."""

    def initial_weights(self, seed: int) -> NamedWeights:
        """Return the float32 weights from which every engine starts: all zero, unless the family overrides this."""
        return self.named(np.zeros(shape, np.float32) for shape in self.shapes)

    @property
    def shapes(self) -> list[Shape]:
        return [parameter.shape for parameter in self.parameters]

    @property
    def parameter_count(self) -> int:
        """Return how many numbers training adjusts."""
        return sum(map(prod, self.shapes))

    def named(self, weights: Iterable[Array]) -> NamedWeights:
        """Return arrays in the order of the parameters as named weights."""
        return NamedWeights((parameter.name for parameter in self.parameters), weights)

    def by_name(self, parts: Iterable[Part]) -> dict[str, Part]:
        """Return what a framework holds for each parameter, in their order, by the parameters' names."""
        return {parameter.name: part for parameter, part in zip(self.parameters, parts, strict=True)}

    @property
    def regularised(self) -> list[str]:
        """Return the names of the parameters that the L2 term counts."""
        return [parameter.name for parameter in self.parameters if parameter.regularised]


def initial_weights(model: Model, seed: int) -> NamedWeights:
    """Return the float32 weights from which every engine starts."""
    return model.initial_weights(seed)


def flatten(weights: Weights) -> Array:
    """Return all weights as one new vector of the same type, in their order."""
    return np.concatenate([part.ravel() for part in weights])


def unflatten(model: Model, flat: Array) -> NamedWeights:
    """Return the vector cut into the model's weights, as views of it."""
    if flat.shape != (model.parameter_count,):
        raise ValueError(f"expected a vector of {model.parameter_count} weights, got the shape {flat.shape}")
    shapes = model.shapes
    ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
    return model.named(part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True))


def fingerprint(weights: Weights) -> str:
    """Return the SHA-256 of the weights as little-endian float32: equal for equal weights on every machine."""
    digest = hashlib.sha256()
    for part in weights:
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    return digest.hexdigest()
