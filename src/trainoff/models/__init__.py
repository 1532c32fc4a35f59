"""What is trained: the registry of model families, their initial weights, and the float64 reference.

Every engine starts from `initial_weights` and is held against `trajectory`. A family is a module here and an entry of
`FAMILIES`.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from trainoff.errors import TrainoffError
from trainoff.models.cnn import Cnn
from trainoff.models.logreg import Logreg
from trainoff.models.mlp import Mlp
from trainoff.models.model import (
    DataShape,
    Model,
    NamedWeights,
    Parameter,
    Weights,
    fingerprint,
    flatten,
    initial_weights,
    unflatten,
)
from trainoff.models.network import ACTIVATIONS, ConvLayer, DenseLayer, Layer, Network, PoolLayer
from trainoff.models.optimizers import BETA1, BETA2, EPSILON, OPTIMIZERS, SCHEDULES, make_optimizer, rates
from trainoff.models.reference import auc, evaluate, logits, loss_and_gradient, trajectory

__all__ = [
    "ACTIVATIONS",
    "BETA1",
    "BETA2",
    "EPSILON",
    "FAMILIES",
    "LAYERED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Cnn",
    "ConvLayer",
    "DataShape",
    "DenseLayer",
    "Layer",
    "Logreg",
    "Mlp",
    "Model",
    "NamedWeights",
    "Network",
    "Parameter",
    "PoolLayer",
    "Weights",
    "auc",
    "build",
    "evaluate",
    "find_builder",
    "fingerprint",
    "flatten",
    "initial_weights",
    "kinds",
    "logits",
    "loss_and_gradient",
    "make_optimizer",
    "rates",
    "trajectory",
    "unflatten",
]

FAMILIES: dict[str, type[Model]] = {family.kind: family for family in (Mlp, Cnn, Logreg)}  # the default first

Builder = TypeVar("Builder")


def kinds(*bases: str) -> frozenset[str]:
    """Return the names of the families whose class has one of these names, or derives from such a class."""
    return frozenset(kind for kind, family in FAMILIES.items() if {base.__name__ for base in family.__mro__} & {*bases})


LAYERED = kinds("Network")


def find_builder(builders: Mapping[str, Builder], model: Model) -> Builder:
    """Return a framework's builder for the model's class, by its name, or for the nearest class it derives from."""
    return next(builders[base.__name__] for base in type(model).__mro__ if base.__name__ in builders)


def build(kind: str, params: Mapping[str, Any], data: DataShape) -> Model:
    """Return the family's model for some data; raise a `TrainoffError` if the data does not fit the family."""
    family = FAMILIES[kind]
    if data.sparse != family.sparse:
        fitting = [name for name, other in FAMILIES.items() if other.sparse == data.sparse]
        if data.sparse:
            raise TrainoffError(
                f"{data.name} has sparse rows, which only the model {' or '.join(fitting)} takes, not {kind}"
            )
        raise TrainoffError(
            f"{data.name} has dense rows, and the model {kind} takes sparse ones; use the model {fitting[0]}"
        )
    if reason := family.misfit(data):
        raise TrainoffError(reason)
    return family.build(params, data)
