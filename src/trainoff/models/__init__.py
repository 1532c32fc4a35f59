"""What is trained: the description of a model, its initial weights, and the float64 reference.

Every engine starts from `initial_weights` and is held against `trajectory`.
"""

from trainoff.models.cnn import Cnn
from trainoff.models.logreg import Logreg
from trainoff.models.mlp import Mlp
from trainoff.models.network import (
    ACTIVATIONS,
    ConvLayer,
    DenseLayer,
    Layer,
    Model,
    Network,
    PoolLayer,
    Weights,
    fingerprint,
    flatten,
    initial_weights,
    unflatten,
)
from trainoff.models.optimizers import BETA1, BETA2, EPSILON, OPTIMIZERS, SCHEDULES, make_optimizer, rates
from trainoff.models.reference import evaluate, labels, logits, loss_and_gradient, trajectory

__all__ = [
    "ACTIVATIONS",
    "BETA1",
    "BETA2",
    "EPSILON",
    "OPTIMIZERS",
    "SCHEDULES",
    "Cnn",
    "ConvLayer",
    "DenseLayer",
    "Layer",
    "Logreg",
    "Mlp",
    "Model",
    "Network",
    "PoolLayer",
    "Weights",
    "evaluate",
    "fingerprint",
    "flatten",
    "initial_weights",
    "labels",
    "logits",
    "loss_and_gradient",
    "make_optimizer",
    "rates",
    "trajectory",
    "unflatten",
]
