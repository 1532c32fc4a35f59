"""numpy: the models in plain numpy and float32, as fast as the matrix products underneath.

Every array is allocated once and updated in place, so that nearly all time goes into the products of the BLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr
from trainoff.engines.contract import Engine, Job, Watch, families, refuse_sparse_l2
from trainoff.engines.shared.shipping import gather_rows
from trainoff.engines.shared.watch import train_loop
from trainoff.models import BETA1, BETA2, EPSILON, LAYERED, Mlp, NamedWeights, Weights, find_builder, flatten, unflatten

if TYPE_CHECKING:
    from trainoff.data import Matrix
    from trainoff.study import Trial

Floats = NDArray[np.float32]

PREDICT_ROWS = 1024  # at a time, so that the hidden layers fit into the CPU cache


class NumpyNetwork:
    """The weights, their gradient, and buffers for one batch.

    `weights` and `gradient` are views of `flat` and `flat_gradient`: a batch uses the matrices, an update the vectors.
    """

    def __init__(self, model: Mlp, weights: Weights, rows: int) -> None:
        self.model = model
        self.flat: Floats = flatten(weights).astype(np.float32)
        self.flat_gradient = np.zeros_like(self.flat)
        self.weights = unflatten(model, self.flat)
        self.gradient = unflatten(model, self.flat_gradient)
        self._outputs = buffers(model.sizes, rows)  # of each layer; the first is the batch
        self._deltas = buffers(model.sizes[1:], rows)  # the derivatives of the loss by each layer's weighted sums
        self._masks = [np.empty((rows, size), np.bool_) for size in model.sizes[1:-1]]
        self._targets = np.empty((rows, model.sizes[-1]), np.float32)
        self._layers = by_layer(model, self.weights)
        self._gradients = by_layer(model, self.gradient)
        self._regularised = []  # weights, their gradient, and scratch memory
        if model.l2:
            scratch = unflatten(model, np.empty_like(self.flat))
            self._regularised = [(self.weights[name], self.gradient[name], scratch[name]) for name in model.regularised]
        self._one_hot = np.eye(model.sizes[-1], dtype=np.float32)

    def differentiate(self, x: NDArray[Any], y: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> float:
        """Compute the gradient of the loss on these rows in `gradient`; return the loss."""
        count = len(rows)
        outputs = [layer[:count] for layer in self._outputs]
        gather_rows(x, rows, outputs[0])
        targets = self._targets[:count]
        np.take(self._one_hot, y[rows], axis=0, out=targets, mode="clip")
        forward(self.model, self._layers, outputs)
        loss = self._delta_at_the_end(outputs[-1], targets)
        self._backward(outputs)
        return loss + self._add_l2()

    def _delta_at_the_end(self, scores: Floats, targets: Floats) -> float:
        """Compute the softmax minus the targets in the last delta; return the mean cross-entropy."""
        delta = self._deltas[-1][: len(scores)]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=delta)
        sums = delta.sum(axis=1, keepdims=True)
        loss = (float(np.log(sums).sum()) - float(np.vdot(scores, targets))) / len(scores)
        delta /= sums
        delta -= targets
        delta /= len(scores)
        return loss

    def _backward(self, outputs: list[Floats]) -> None:
        """Propagate from the last delta to the first layer, overwriting the outputs of the hidden layers."""
        deltas = [delta[: len(outputs[0])] for delta in self._deltas]
        for layer in reversed(range(len(deltas))):
            weight, bias = self._gradients[layer]
            np.matmul(outputs[layer].T, deltas[layer], out=weight)
            deltas[layer].sum(axis=0, out=bias)
            if layer:
                below = deltas[layer - 1]
                np.matmul(deltas[layer], self._layers[layer][0].T, out=below)
                multiply_derivative(self.model.activation, below, outputs[layer], self._masks[layer - 1])

    def _add_l2(self) -> float:
        """Add the gradient of the L2 term; return its part of the loss."""
        l2, loss = self.model.l2, 0.0
        for weight, gradient, scratch in self._regularised:
            gradient += np.multiply(weight, l2, out=scratch)
            loss += l2 / 2 * float(np.vdot(weight, weight))
        return loss


def buffers(sizes: tuple[int, ...], rows: int) -> list[Floats]:
    """Return a buffer of `rows` rows for each layer."""
    return [np.empty((rows, size), np.float32) for size in sizes]


def by_layer(model: Mlp, weights: NamedWeights) -> list[tuple[Floats, Floats]]:
    """Return the weight and the bias of each layer."""
    return [(weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]) for layer in model.layers]


def forward(model: Mlp, layers: Sequence[tuple[Floats, Floats]], outputs: list[Floats]) -> None:
    """Fill `outputs` from the first, the input, to the last, the scores before the softmax."""
    last = outputs[-1]
    for (weight, bias), (below, above) in zip(layers, pairwise(outputs), strict=True):
        np.matmul(below, weight, out=above)
        above += bias
        if above is not last:
            activate(model.activation, above)


def activate(name: str, sums: Floats) -> None:
    """Apply the activation in place."""
    if name == "relu":
        np.maximum(sums, 0, out=sums)
    elif name == "tanh":
        np.tanh(sums, out=sums)
    else:
        np.negative(sums, out=sums)
        np.exp(sums, out=sums)
        sums += 1
        np.reciprocal(sums, out=sums)


def multiply_derivative(name: str, delta: Floats, outputs: Floats, mask: NDArray[np.bool_]) -> None:
    """Multiply `delta` in place by the derivative of the activation at `outputs`, which are overwritten."""
    if name == "relu":
        delta *= np.greater(outputs, 0, out=mask[: len(outputs)])
        return
    if name == "sigmoid":
        delta *= outputs
    else:
        np.square(outputs, out=outputs)
    np.subtract(1, outputs, out=outputs)
    delta *= outputs


SCIPY_ROWS = 4096  # at a time


class NumpyPerceptron:
    """The network, its optimiser and the training rows."""

    def __init__(self, job: Job) -> None:
        whole = job.params["optimizer"] == "l-bfgs"
        rows = min(SCIPY_ROWS if whole else job.order.batch_size, job.order.rows)
        self.network = NumpyNetwork(job.model, job.weights, rows)
        self._optimizer = make_optimizer(job.params, job.model.parameter_count)
        # As plain arrays, which are faster to take rows from than memory maps.
        self._x, self._y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)

    @property
    def weights(self) -> Weights:
        return self.network.weights

    def put(self, weights: Weights) -> None:
        """Set the weights."""
        self.network.flat[...] = flatten(weights)

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make a step on these rows; return the loss before it."""
        loss = self.network.differentiate(self._x, self._y, rows)
        self._optimizer.step(self.network.flat, self.network.flat_gradient, rate)
        return loss

    def predict(self, x: Floats) -> NDArray[np.int64]:
        model = self.network.model
        found = np.empty(len(x), np.int64)
        layers = buffers(model.sizes[1:], PREDICT_ROWS)
        for start in range(0, len(x), PREDICT_ROWS):
            part = np.asarray(x[start : start + PREDICT_ROWS])
            outputs = [part, *(layer[: len(part)] for layer in layers)]
            forward(model, by_layer(model, self.network.weights), outputs)
            np.argmax(outputs[-1], axis=1, out=found[start : start + len(part)])
        return found


class NumpyOptimizer(Protocol):
    """The rule that turns a gradient into a step."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        """Move the weights in place by one step. May overwrite the gradient."""


class NumpySgd:
    """Plain gradient descent."""

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        gradient *= rate
        weights -= gradient


class NumpyMomentum:
    """Gradient descent with a velocity."""

    def __init__(self, size: int, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = np.zeros(size, np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._velocity *= self._momentum
        self._velocity += gradient
        np.multiply(self._velocity, rate, out=gradient)
        weights -= gradient


class NumpyAdam:
    """Adam, with both bias corrections applied to the rate and epsilon instead of the vectors."""

    def __init__(self, size: int) -> None:
        self._steps = 0
        self._mean, self._square, self._scratch = np.zeros((3, size), np.float32)

    def step(self, weights: Floats, gradient: Floats, rate: float) -> None:
        self._steps += 1
        unbias = sqrt(1 - BETA2**self._steps)
        scratch = np.multiply(gradient, 1 - BETA1, out=self._scratch)
        self._mean *= BETA1
        self._mean += scratch
        np.square(gradient, out=gradient)
        gradient *= 1 - BETA2
        self._square *= BETA2
        self._square += gradient
        np.sqrt(self._square, out=scratch)
        scratch += EPSILON * unbias
        np.divide(self._mean, scratch, out=scratch)
        scratch *= rate * unbias / (1 - BETA1**self._steps)
        weights -= scratch


def make_optimizer(params: Mapping[str, Any], size: int) -> NumpyOptimizer:
    """Return the trial's optimiser for a number of weights."""
    if params["optimizer"] == "adam":
        return NumpyAdam(size)
    if params["optimizer"] == "momentum":
        return NumpyMomentum(size, float(params["momentum"]))
    return NumpySgd()


SPARSE_PREDICT_ROWS = 10_000


class NumpyLogistic:
    """One weight per feature and a bias."""

    def __init__(self, job: Job) -> None:
        self.put(job.weights)
        x = job.data.x_train
        self._x = Csr(np.asarray(x.starts), np.asarray(x.columns), np.asarray(x.values), x.width)
        self._y = np.asarray(job.data.y_train)

    def put(self, weights: Weights) -> None:
        """Set the weights."""
        self.weights: Weights = [part.copy() for part in weights]
        self._weight, self._bias = self.weights

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make a step on these rows; return the loss before it."""
        x, y = self._x[rows], self._y[rows]
        owners = x.row_numbers()
        z = self._scores(x, owners)
        delta = (1 / (1 + np.exp(-z)) - y) / len(y)
        gradients = x.values * delta[owners].astype(np.float32)
        gradients *= np.float32(rate)
        np.subtract.at(self._weight, x.columns, gradients)
        self._bias -= np.float32(rate * delta.sum())
        return float(np.logaddexp(0, np.where(y == 1, -z, z)).mean())

    def _scores(self, x: Csr, owners: NDArray[np.int64]) -> NDArray[np.float64]:
        products = x.values * self._weight[x.columns]
        sums = np.bincount(owners, products, minlength=len(x)).astype(np.float64, copy=False)
        return sums + float(self._bias[0])

    def predict(self, x: Csr) -> NDArray[np.int64]:
        found = np.empty(len(x), np.int64)
        for start in range(0, len(x), SPARSE_PREDICT_ROWS):
            part = x[start : start + SPARSE_PREDICT_ROWS].compact()
            found[start : start + len(part)] = self._scores(part, part.row_numbers()) > 0
        return found


CORRECTIONS = 10  # past steps that L-BFGS uses for the next one


def minimize(learner: NumpyPerceptron, job: Job, watch: Watch) -> None:
    """Make as many iterations as there are epochs, unless scipy gives up before."""
    from scipy.optimize import minimize as scipy_minimize

    network = learner.network
    objective = Objective(network, job)
    progress = Iterations(network, job, watch, objective)
    # Only the number of iterations ends it, never a small change of the loss.
    options = {"maxiter": job.order.epochs, "maxfun": 10**9, "maxcor": CORRECTIONS, "ftol": 0.0, "gtol": 0.0}
    start = network.flat.astype(np.float64)
    result = scipy_minimize(objective, start, jac=True, method="L-BFGS-B", callback=progress, options=options)
    progress.finish()
    watch.count("evaluations", objective.evaluations)
    if not watch.should_stop and progress.step < job.order.epochs:
        print(f"scipy gave up after {progress.step} iterations: {result.message}")
        watch.count("gave_up_after", progress.step)


class Objective:
    """The loss over all rows and its gradient, computed part by part."""

    def __init__(self, network: NumpyNetwork, job: Job) -> None:
        self.evaluations = 0
        self._network = network
        self._x, self._y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        count = len(self._y)
        self._parts = [np.arange(start, min(start + SCIPY_ROWS, count)) for start in range(0, count, SCIPY_ROWS)]

    def __call__(self, flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        self.evaluations += 1
        network = self._network
        network.flat[...] = flat
        loss, gradient = 0.0, np.zeros_like(flat)
        for rows in self._parts:
            share = len(rows) / len(self._y)
            loss += share * network.differentiate(self._x, self._y, rows)
            gradient += share * network.flat_gradient
        return loss, gradient


class Iterations:
    """Reports each iteration to the watch, and ends the training when the watch says so."""

    def __init__(self, network: NumpyNetwork, job: Job, watch: Watch, objective: Objective) -> None:
        self._network, self._rows, self._watch, self._objective = network, job.order.rows, watch, objective
        self.step = self._seen = self._stored = 0
        self._last = network.flat.astype(np.float64)

    def __call__(self, intermediate_result: Any) -> None:
        self.step += 1
        self._seen = self._objective.evaluations * self._rows  # each on all rows
        self._last = intermediate_result.x.copy()
        self._watch.progress(self.step, float(intermediate_result.fun), self._seen)
        if self._watch.due():
            self._store_snapshot()
        if self._watch.should_stop:
            raise StopIteration

    def _store_snapshot(self) -> None:
        self._network.flat[...] = self._last
        self._watch.snapshot(self._seen, self._network.weights)
        self._stored = self.step

    def finish(self) -> None:
        """Give the network the last iteration's weights, and store a snapshot of them if there is none."""
        self._network.flat[...] = self._last
        if self.step > self._stored:
            self._store_snapshot()


BUILDERS: Mapping[str, Callable[[Job], Any]] = {"Mlp": NumpyPerceptron, "Logreg": NumpyLogistic}


def make_learner(job: Job) -> Any:
    """Return what trains the job's model: it makes a `step` on some rows, and has `weights` and `predict`."""
    return find_builder(BUILDERS, job.model)(job)


class Numpy(Engine):
    """Plain numpy: the simplest training, as a baseline for the others."""

    name = "numpy"
    about = "plain numpy in float32, one process"
    models = families(*BUILDERS)
    package = "numpy"
    modules = ("numpy",)

    def optimizers(self, model: str) -> Sequence[str]:
        return (*super().optimizers(model), "l-bfgs") if model in LAYERED else super().optimizers(model)

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        if values["optimizer"] != "l-bfgs":
            return values
        return {**values, "schedule": "constant", "learning_rate": 1.0}  # a line search finds its own

    def refuses(self, trial: Trial) -> str | None:
        return refuse_sparse_l2(trial)

    def differs(self, trial: Trial) -> str | None:
        if trial.params["optimizer"] == "l-bfgs":
            return "L-BFGS of scipy, every iteration on all rows"
        return None

    def open(self, job: Job, watch: Watch) -> None:
        if job.params["optimizer"] == "l-bfgs":
            with watch.phase("import"):
                import scipy.optimize  # noqa: F401  # so that its time does not count as training
        self._learner = make_learner(job)

    def train(self, job: Job, watch: Watch) -> None:
        learner = self._learner
        with np.errstate(over="ignore", invalid="ignore"):  # the watch notices a loss that is not finite
            if job.params["optimizer"] == "l-bfgs":
                minimize(learner, job, watch)
            else:
                train_loop(job, watch, learner.step, lambda: learner.weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._learner.predict(x)
        return found
