"""Perceptrons and convolutional networks in TensorFlow: a compiled step for each size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr, Matrix
from trainoff.engines.contract import Job
from trainoff.models import BETA1, BETA2, EPSILON, ConvLayer, DenseLayer, Layer, Network, PoolLayer

MEMORY = {"sgd": 0, "momentum": 1, "adam": 2}  # how many numbers an optimiser remembers of each weight
ALIGNMENT = 64  # bytes; where an array begins at a multiple of it, TensorFlow takes it without a copy

Tensor = Any  # TensorFlow has no types that mypy could use


class TfNetwork:
    """A perceptron or convolutional network: variables, and a compiled step for each size of a batch."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._model = tf, job.model
        self._optimizer, self._momentum = job.params["optimizer"], job.params["momentum"]
        copies = MEMORY[self._optimizer]
        self.weights = [tf.Variable(part) for part in job.weights]
        self._memory = [[tf.Variable(tf.zeros_like(part)) for _ in range(copies)] for part in job.weights]
        self.state = [*self.weights, *(part for parts in self._memory for part in parts)]  # all that a step changes
        self._steps = {size: self._compile(job, rows) for size, rows in self._sizes(job).items()}
        self.labels = labeller(tf, job.model, self.weights)

    def _sizes(self, job: Job) -> dict[int, int]:
        """The sizes that batches have, and how many rows of such a batch are learnt from here."""
        return {size: size for size in job.order.batch_sizes}

    def _compile(self, job: Job, size: int) -> Callable[..., float]:
        """The step for batches of one size, with arrays of its own for the batch and what the update needs."""
        # Without the memory map's class around them, the arrays are taken from with less ado.
        all_x, all_y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        x, x_tensor = shared(self._tf, (size, all_x.shape[1]), np.float32)
        y, y_tensor = shared(self._tf, (size,), np.int64)
        # The rate, Adam's epsilon, and which share of a batch these rows are.
        numbers, numbers_tensor = shared(self._tf, (3,), np.float32)
        inputs = [x_tensor, y_tensor, numbers_tensor]
        function = self._tf.function(self._step, jit_compile=job.params.get("xla", False), autograph=False)
        compiled = function.get_concrete_function(*inputs)

        def step(rows: NDArray[np.int64], *values: float) -> float:
            np.take(all_x, rows, axis=0, out=x, mode="clip")
            np.take(all_y, rows, out=y, mode="clip")
            numbers[:] = values
            return float(compiled(*inputs))  # waits for the step, so that the arrays are free again

        return step

    def learn(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make one step on these rows; returns the loss before it."""
        return self._steps[len(rows)](rows, *step_numbers(self._optimizer, rate, step), 1.0)

    def _step(self, x: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        loss, gradient = self._gradients(x, y, numbers)
        for weights, memory, slope in zip(self.weights, self._memory, gradient, strict=True):
            update(self._tf, weights, memory, slope, numbers, self._momentum)
        return loss

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss, and the gradient of the whole batch."""
        return differentiate(self._tf, self._model, self.weights, x, y)


def labeller(tf: Any, model: Network, weights: Sequence[Tensor]) -> Callable[[Matrix], NDArray[np.int64]]:
    """What finds the class of each row, by weights that may change from call to call."""
    rows = tf.TensorSpec([None, None])
    find = tf.function(lambda x: tf.argmax(scores(tf, model, weights, x), 1), [rows], autograph=False)

    def labels(x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = find(tf.convert_to_tensor(x)).numpy()
        return found

    return labels


def shared(tf: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Tensor]:
    """An array, and a tensor that lies in the same memory: what is written to the one is read from the other."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    array = raw[first : first + size].view(dtype).reshape(shape)
    return array, tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def scores(tf: Any, model: Network, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the output of the last layer, before the softmax."""
    named = model.by_name(weights)
    for layer in model.layers:
        x = apply(tf, layer, x, *(named[parameter.name] for parameter in layer.parameters))
    return x


def apply(tf: Any, layer: Layer, x: Tensor, *weights: Tensor) -> Tensor:
    """Return the layer's outputs; only some of them, if the weights are of these alone."""
    return BUILDERS[type(layer).__name__](tf, layer, x, *weights)


def dense(tf: Any, layer: DenseLayer, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    sums = tf.matmul(tf.reshape(x, [-1, layer.inputs]), weight)
    return activate(tf, layer.activation, tf.nn.bias_add(sums, bias))


def convolve(tf: Any, layer: ConvLayer, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    images = tf.reshape(x, [-1, layer.height, layer.width, layer.inputs])
    return activate(tf, layer.activation, tf.nn.bias_add(tf.nn.conv2d(images, weight, 1, "VALID"), bias))


def pool(tf: Any, layer: PoolLayer, x: Tensor) -> Tensor:
    return tf.nn.max_pool2d(x, 2, 2, "VALID")


def activate(tf: Any, name: str | None, sums: Tensor) -> Tensor:
    return getattr(tf.nn, name)(sums) if name else sums  # TensorFlow has our names


BUILDERS: Mapping[str, Callable[..., Tensor]] = {"DenseLayer": dense, "ConvLayer": convolve, "PoolLayer": pool}


def differentiate(
    tf: Any, model: Network, weights: Sequence[Tensor], x: Tensor, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the mean cross-entropy with the L2 term, and its gradient in the order of the weights."""
    with tf.GradientTape() as tape:
        tape.watch(weights)  # tensors, where they come from elsewhere
        found = scores(tf, model, weights, x)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, found))
        if model.l2:
            named = model.by_name(weights)
            loss += model.l2 * tf.add_n([tf.nn.l2_loss(named[name]) for name in model.regularised])
    return loss, tape.gradient(loss, weights)


def update(tf: Any, weights: Tensor, memory: Sequence[Tensor], slope: Tensor, numbers: Tensor, mu: float) -> Tensor:
    """Move one layer's weights in place, by the kernel that suits what the optimiser remembers of it.

    Returns the operation, where a graph is being built. `numbers` are the rate and Adam's epsilon, with the bias
    corrections of Adam in them already.
    """
    var, rate, places = weights.handle, numbers[0], [part.handle for part in memory]
    if not places:
        return tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=rate, delta=slope)
    if len(places) == 1:
        return tf.raw_ops.ResourceApplyMomentum(var=var, accum=places[0], lr=rate, grad=slope, momentum=mu)
    betas = {"beta1_power": 0.0, "beta2_power": 0.0, "beta1": BETA1, "beta2": BETA2, "epsilon": numbers[1]}
    return tf.raw_ops.ResourceApplyAdam(var=var, m=places[0], v=places[1], lr=rate, grad=slope, **betas)


def step_numbers(optimizer: str, rate: float, step: int) -> tuple[float, float]:
    """The rate and Adam's epsilon of a step, with both bias corrections drawn into them: the same formula."""
    if optimizer != "adam":
        return rate, 0.0
    unbias = sqrt(1 - BETA2**step)
    return rate * unbias / (1 - BETA1**step), EPSILON * unbias


class TfLogistic:
    """One weight per feature and a bias."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._x, self._y = tf, job.data.x_train, job.data.y_train
        self.weights = self.state = [tf.Variable(part) for part in job.weights]
        self._weight, self._bias = self.weights
        # Batches differ in their non-zeros, so the lengths stay open and nothing is compiled anew.
        ints, floats = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])
        sparse = [ints, floats, tf.TensorSpec([None], tf.int64)]
        self._compiled = tf.function(self._step, [*sparse, floats, tf.TensorSpec([2])], autograph=False)
        self._compiled_scores = tf.function(self._scores, input_signature=[*sparse, tf.TensorSpec([], tf.int32)])

    def learn(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make one step on these rows; returns the loss before it."""
        return self._learn(rows, rate, 1.0)

    def _learn(self, rows: NDArray[np.int64], rate: float, part: float) -> float:
        """Learn from rows that are a part of a batch."""
        return float(self._compiled(*parts(self._x[rows]), self._y[rows].astype("float32"), [rate, part]))

    def labels(self, x: Csr) -> NDArray[np.int64]:
        """The class of each row: 1 where the odds are better than even."""
        odds: NDArray[np.float32] = self._compiled_scores(*parts(x.compact()), len(x)).numpy()
        return (odds > 0).astype("int64")

    def _scores(self, columns: Tensor, values: Tensor, owners: Tensor, rows: Tensor) -> Tensor:
        """The log-odds of each row; those of a row without non-zeros are the bias."""
        products = self._tf.gather(self._weight, columns) * values
        return self._tf.math.unsorted_segment_sum(products, owners, rows) + self._bias

    def _step(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        """Make a step; `numbers` are the rate, and which part of the batch these rows are."""
        loss, columns, changes, change = self._changes(columns, values, owners, y, numbers)
        self._tf.raw_ops.ResourceScatterSub(resource=self._weight.handle, indices=columns, updates=changes)
        self._bias.assign_sub(change)
        return loss

    def _changes(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> list[Tensor]:
        """The loss, the features whose weights change, by how much each, and by how much the bias."""
        tf = self._tf
        z = self._scores(columns, values, owners, tf.size(y))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        moves = (tf.sigmoid(z) - y) * (numbers[0] * numbers[1] / tf.cast(tf.size(y), tf.float32))
        return [loss * numbers[1], columns, tf.gather(moves, owners) * values, tf.reduce_sum(moves, keepdims=True)]


def parts(x: Csr) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The non-zeros' columns and values, and the row each belongs to."""
    return x.columns, x.values, x.row_numbers()
