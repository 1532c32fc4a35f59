"""What is trained: the model families, their initial weights, and the float64 reference.

Every engine starts from `initial_weights` and is held against `trajectory`. A family is a module here and an entry of
`FAMILIES`.
"""

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
from trainoff.models.registry import FAMILIES, LAYERED, build, find_builder, kinds

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
