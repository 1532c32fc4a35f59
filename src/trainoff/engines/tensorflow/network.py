"""Networks and logistic regression in TensorFlow: a compiled step for each batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Csr, Matrix
from trainoff.engines.contract import Job
from trainoff.models import BETA1, BETA2, EPSILON, ConvLayer, DenseLayer, Layer, Network, PoolLayer

MEMORY = {"sgd": 0, "momentum": 1, "adam": 2}  # numbers that the optimiser stores for each weight
ALIGNMENT = 64  # bytes; TensorFlow uses an array without a copy if it begins at a multiple of it

Tensor = Any  # TensorFlow has no types that mypy could use


class TfNetwork:
    """A network: its variables, and a compiled step for each batch size."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._model = tf, job.model
        self._optimizer, self._momentum = job.params["optimizer"], job.params["momentum"]
        copies = MEMORY[self._optimizer]
        self.weights = [tf.Variable(part) for part in job.weights]
        self._memory = [[tf.Variable(tf.zeros_like(part)) for _ in range(copies)] for part in job.weights]
        self.state = [*self.weights, *(part for parts in self._memory for part in parts)]  # all that a step changes
        self._steps = {size: self._compile(job, rows) for size, rows in self._sizes(job).items()}
        self.predict = make_predictor(tf, job.model, self.weights)

    def _sizes(self, job: Job) -> dict[int, int]:
        """Return the batch sizes, each with the number of rows that this process computes."""
        return {size: size for size in job.order.batch_sizes}

    def _compile(self, job: Job, size: int) -> Callable[..., float]:
        """Return the step for one batch size, with arrays for the batch and for the numbers of the update."""
        # As plain arrays, which are faster to take rows from than memory maps.
        all_x, all_y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        x, x_tensor = shared(self._tf, (size, all_x.shape[1]), np.float32)
        y, y_tensor = shared(self._tf, (size,), np.int64)
        # The rate, Adam's epsilon, and the share of the batch that these rows are.
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

    def train_step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make one step on these rows; return the loss before it."""
        return self._steps[len(rows)](rows, *step_numbers(self._optimizer, rate, step), 1.0)

    def _step(self, x: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        loss, gradient = self._gradients(x, y, numbers)
        for weights, memory, part in zip(self.weights, self._memory, gradient, strict=True):
            update(self._tf, weights, memory, part, numbers, self._momentum)
        return loss

    def _gradients(self, x: Tensor, y: Tensor, numbers: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the loss and the gradient of the whole batch."""
        return differentiate(self._tf, self._model, self.weights, x, y)


def make_predictor(tf: Any, model: Network, weights: Sequence[Tensor]) -> Callable[[Matrix], NDArray[np.int64]]:
    """Return a function that predicts the class of each row by the weights, which may change between calls."""
    rows = tf.TensorSpec([None, None])
    find = tf.function(lambda x: tf.argmax(scores(tf, model, weights, x), 1), [rows], autograph=False)

    def labels(x: Matrix) -> NDArray[np.int64]:
        found: NDArray[np.int64] = find(tf.convert_to_tensor(x)).numpy()
        return found

    return labels


def shared(tf: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Tensor]:
    """Return an array and a tensor that share their memory."""
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
    return LAYER_BUILDERS[type(layer).__name__](tf, layer, x, *weights)


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


LAYER_BUILDERS: Mapping[str, Callable[..., Tensor]] = {"DenseLayer": dense, "ConvLayer": convolve, "PoolLayer": pool}


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


def update(tf: Any, weights: Tensor, memory: Sequence[Tensor], gradient: Tensor, numbers: Tensor, mu: float) -> Tensor:
    """Update one parameter in place by the kernel of its optimiser, which the number of its state variables implies.

    Returns the operation, if a graph is being built. `numbers` are the rate and Adam's epsilon, both bias-corrected.
    """
    var, rate, places = weights.handle, numbers[0], [part.handle for part in memory]
    if not places:
        return tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=rate, delta=gradient)
    if len(places) == 1:
        return tf.raw_ops.ResourceApplyMomentum(var=var, accum=places[0], lr=rate, grad=gradient, momentum=mu)
    betas = {"beta1_power": 0.0, "beta2_power": 0.0, "beta1": BETA1, "beta2": BETA2, "epsilon": numbers[1]}
    return tf.raw_ops.ResourceApplyAdam(var=var, m=places[0], v=places[1], lr=rate, grad=gradient, **betas)


def step_numbers(optimizer: str, rate: float, step: int) -> tuple[float, float]:
    """Return the rate and Adam's epsilon of a step, both bias-corrected."""
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
        # Batches differ in their non-zeros; with open lengths the step is compiled once.
        ints, floats = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])
        sparse = [ints, floats, tf.TensorSpec([None], tf.int64)]
        self._compiled = tf.function(self._step, [*sparse, floats, tf.TensorSpec([2])], autograph=False)
        self._compiled_scores = tf.function(self._scores, input_signature=[*sparse, tf.TensorSpec([], tf.int32)])

    def train_step(self, step: int, rows: NDArray[np.int64], rate: float) -> float:
        """Make one step on these rows; return the loss before it."""
        return self._train_on(rows, rate, 1.0)

    def _train_on(self, rows: NDArray[np.int64], rate: float, part: float) -> float:
        """Make a step on rows that are a part of a batch."""
        return float(self._compiled(*parts(self._x[rows]), self._y[rows].astype("float32"), [rate, part]))

    def predict(self, x: Csr) -> NDArray[np.int64]:
        """Return the class of each row: 1 if its log-odds are positive."""
        odds: NDArray[np.float32] = self._compiled_scores(*parts(x.compact()), len(x)).numpy()
        return (odds > 0).astype("int64")

    def _scores(self, columns: Tensor, values: Tensor, owners: Tensor, rows: Tensor) -> Tensor:
        """Return the log-odds of each row."""
        products = self._tf.gather(self._weight, columns) * values
        return self._tf.math.unsorted_segment_sum(products, owners, rows) + self._bias

    def _step(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        """Make a step; `numbers` are the rate and the share of the batch that these rows are."""
        loss, columns, changes, change = self._changes(columns, values, owners, y, numbers)
        self._tf.raw_ops.ResourceScatterSub(resource=self._weight.handle, indices=columns, updates=changes)
        self._bias.assign_sub(change)
        return loss

    def _changes(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, numbers: Tensor) -> list[Tensor]:
        """Return the loss, the features whose weights change, their changes, and the change of the bias."""
        tf = self._tf
        z = self._scores(columns, values, owners, tf.size(y))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        moves = (tf.sigmoid(z) - y) * (numbers[0] * numbers[1] / tf.cast(tf.size(y), tf.float32))
        return [loss * numbers[1], columns, tf.gather(moves, owners) * values, tf.reduce_sum(moves, keepdims=True)]


def parts(x: Csr) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the columns, values and row numbers of the non-zeros."""
    return x.columns, x.values, x.row_numbers()


BUILDERS: Mapping[str, type[TfNetwork] | type[TfLogistic]] = {"Network": TfNetwork, "Logreg": TfLogistic}
