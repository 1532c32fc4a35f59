"""tensorflow: the model in plain TensorFlow, one compiled step per batch.

A step is a `tf.function` for batches of one size: the gradient by TensorFlow's tape, the update by TensorFlow's own
kernels. Keras is not used; its momentum keeps the rate inside the velocity, which is another optimiser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from trainoff.engines.contract import Engine, Job, Knob, Refused, Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Csr, Matrix, Order
    from trainoff.models import Layer
    from trainoff.study import Trial

DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")  # without and with the parts for a GPU
PREDICT_ROWS = 1024  # so many rows and their hidden layers stay in the cache
ALIGNMENT = 64  # bytes; where an array begins at a multiple of it, TensorFlow takes it without a copy
NO_GPU = (
    'device = "cuda" needs a GPU and a TensorFlow that can use it; '
    "pip install 'tensorflow[and-cuda]' on a machine with an NVIDIA GPU, or use device = \"cpu\""
)

Tensor = Any  # TensorFlow has no types that mypy could use


class TensorFlow(Engine):
    """TensorFlow without Keras, a compiled step at a time."""

    name = "tensorflow"
    about = "TensorFlow in float32 on the CPU or one GPU, one process"
    models = frozenset({"mlp", "cnn", "logreg"})
    package = "tensorflow-cpu"
    extra = "tensorflow"
    modules = ("tensorflow",)
    knobs: ClassVar[Mapping[str, Knob]] = {
        "device": Knob(str, "cpu", "where it trains: on the CPU or on one GPU", choices=("cpu", "cuda")),
        "xla": Knob(bool, False, "whether XLA compiles the step of a network; logreg is left as it is"),
    }

    def version(self) -> str:
        return next(iter(installed().values()), "not installed")

    def refuses(self, trial: Trial) -> str | None:
        if trial.params["device"] == "cuda" and list(installed()) == ["tensorflow-cpu"]:
            return NO_GPU
        return self.refuses_l2(trial)

    def open(self, job: Job, watch: Watch) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
        with watch.phase("import"):
            import tensorflow as tf

            threads = max(1, int(job.cores))
            set_threads(tf, threads)
            device = find_device(tf, job.params.get("device", "cpu"))
        watch.count("threads", threads)
        with watch.phase("compile"), tf.device(device):
            self._learner = Logistic(tf, job) if job.model.kind == "logreg" else Network(tf, job)
            warm_up(job, self._learner)

    def train(self, job: Job, watch: Watch) -> None:
        learner = self._learner
        for step, rows in job.order.batches():
            watch.progress(step, learner.learn(rows, float(job.rates[step - 1]), step))
            if watch.due():
                watch.snapshot(job.order.samples_after(step), [part.numpy() for part in learner.weights])
            if watch.should_stop:
                break

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        import numpy as np

        found = np.empty(len(x), np.int64)
        for start in range(0, len(x), PREDICT_ROWS):
            found[start : start + PREDICT_ROWS] = self._learner.labels(x[start : start + PREDICT_ROWS])
        return found


def installed() -> dict[str, str]:
    """Which distributions of TensorFlow there are, and their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def set_threads(tf: Any, threads: int) -> None:
    """Let TensorFlow share one operation among so many threads, and run one operation at a time."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        started = tf.config.threading.get_intra_op_parallelism_threads()
        raise RuntimeError(
            f"TensorFlow has been started with {started} threads in this process and cannot change to {threads}; "
            "train in a new process"
        ) from None


def find_device(tf: Any, name: str) -> str:
    """TensorFlow's name of the device. On the CPU the GPUs are hidden, so that none is started."""
    if name == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return "/CPU:0"
    if not tf.config.list_physical_devices("GPU"):
        raise Refused(NO_GPU)
    return "/GPU:0"


def warm_up(job: Job, learner: Network | Logistic) -> None:
    """Make a step of each size that a batch has and label a few rows, for TensorFlow to compile; forget what came."""
    import numpy as np

    for size in batch_sizes(job.order):
        learner.learn(np.arange(size), 0.0, 1)
    learner.labels(job.data.x_train[:1])
    started = [*job.weights, *(np.zeros(part.shape, np.float32) for part in learner.state[len(job.weights) :])]
    for part, value in zip(learner.state, started, strict=True):
        part.assign(value)


def batch_sizes(order: Order) -> list[int]:
    """How many rows a batch has: most of them, and the last of an epoch if it has fewer."""
    full = min(order.batch_size, order.rows)
    return [full, order.rows % full] if order.rows % full else [full]


class Network:
    """A perceptron or convolutional network: variables, and a compiled step for each size of a batch."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._model = tf, job.model
        self._optimizer, self._momentum = job.params["optimizer"], job.params["momentum"]
        copies = {"sgd": 0, "momentum": 1, "adam": 2}[self._optimizer]  # of what the optimiser remembers
        self.weights = [tf.Variable(part) for part in job.weights]
        self._memory = [[tf.Variable(tf.zeros_like(part)) for _ in range(copies)] for part in job.weights]
        self.state = [*self.weights, *(part for parts in self._memory for part in parts)]  # all that a step changes
        self._steps = {size: self._compile(job, size) for size in batch_sizes(job.order)}
        rows = tf.TensorSpec([None, job.data.x_train.shape[1]])
        self._compiled_labels = tf.function(self._labels, input_signature=[rows], autograph=False)

    def _compile(self, job: Job, size: int) -> Callable[..., float]:
        """The step for batches of one size, with arrays of its own for the batch and what the update needs."""
        import numpy as np

        # Without the memory map's class around them, the arrays are taken from with less ado.
        all_x, all_y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)
        x, x_tensor = shared(self._tf, (size, all_x.shape[1]), np.float32)
        y, y_tensor = shared(self._tf, (size,), np.int64)
        numbers, numbers_tensor = shared(self._tf, (2,), np.float32)  # the rate, and Adam's epsilon
        inputs = [x_tensor, y_tensor, numbers_tensor]
        function = self._tf.function(self._step, jit_compile=job.params.get("xla", False), autograph=False)
        compiled = function.get_concrete_function(*inputs)

        def step(rows: NDArray[np.int64], *rate_and_epsilon: float) -> float:
            np.take(all_x, rows, axis=0, out=x, mode="clip")
            np.take(all_y, rows, out=y, mode="clip")
            numbers[:] = rate_and_epsilon
            return float(compiled(*inputs))  # waits for the step, so that the arrays are free again

        return step

    def learn(self, rows: NDArray[np.int64], rate: float, step: int) -> float:
        """Make one step on these rows; returns the loss before it."""
        numbers = adam_numbers(rate, step) if self._optimizer == "adam" else (rate, 0.0)
        return self._steps[len(rows)](rows, *numbers)

    def labels(self, x: Matrix) -> NDArray[np.int64]:
        """The class of each row."""
        found: NDArray[np.int64] = self._compiled_labels(self._tf.convert_to_tensor(x)).numpy()
        return found

    def _labels(self, x: Tensor) -> Tensor:
        return self._tf.argmax(scores(self._tf, self._model.layers, self.weights, x), 1)

    def _step(self, x: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        loss, gradient = differentiate(self._tf, self._model, self.weights, x, y)
        for weights, memory, slope in zip(self.weights, self._memory, gradient, strict=True):
            update(self._tf, weights, memory, slope, numbers, self._momentum)
        return loss


def shared(tf: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Tensor]:
    """An array, and a tensor that lies in the same memory: what is written to the one is read from the other."""
    import numpy as np

    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    array = raw[first : first + size].view(dtype).reshape(shape)
    return array, tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def scores(tf: Any, layers: Sequence[Layer], weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """What the last layer puts out, before the softmax."""
    from trainoff.models import Conv, Pool

    rest = iter(weights)
    for layer in layers:
        if isinstance(layer, Pool):
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            continue
        matrix, bias = next(rest), next(rest)
        if isinstance(layer, Conv):
            x = tf.nn.conv2d(tf.reshape(x, [-1, layer.height, layer.width, layer.inputs]), matrix, 1, "VALID")
        else:
            x = tf.matmul(tf.reshape(x, [-1, layer.inputs]), matrix)
        x = tf.nn.bias_add(x, bias)
        if layer.activation:
            x = getattr(tf.nn, layer.activation)(x)  # TensorFlow has our names: relu, sigmoid, tanh
    return x


def differentiate(tf: Any, model: Any, weights: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The mean cross-entropy with the L2 term, and its gradient in the order of the weights."""
    with tf.GradientTape() as tape:
        found = scores(tf, model.layers, weights, x)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, found))
        if model.l2:
            loss += model.l2 * tf.add_n([tf.nn.l2_loss(matrix) for matrix in weights[::2]])
    return loss, tape.gradient(loss, weights)


def update(tf: Any, weights: Tensor, memory: Sequence[Tensor], slope: Tensor, numbers: Tensor, mu: float) -> None:
    """Move one layer's weights in place, by the kernel that suits what the optimiser remembers of it.

    `numbers` are the rate and Adam's epsilon, with the bias corrections of Adam in them already.
    """
    from trainoff.models import BETA1, BETA2

    var, rate, places = weights.handle, numbers[0], [part.handle for part in memory]
    if not places:
        tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=rate, delta=slope)
    elif len(places) == 1:
        tf.raw_ops.ResourceApplyMomentum(var=var, accum=places[0], lr=rate, grad=slope, momentum=mu)
    else:
        betas = {"beta1_power": 0.0, "beta2_power": 0.0, "beta1": BETA1, "beta2": BETA2, "epsilon": numbers[1]}
        tf.raw_ops.ResourceApplyAdam(var=var, m=places[0], v=places[1], lr=rate, grad=slope, **betas)


def adam_numbers(rate: float, step: int) -> tuple[float, float]:
    """The rate and epsilon of a step with both bias corrections drawn into them, which is the same formula."""
    from trainoff.models import BETA1, BETA2, EPSILON

    unbias = sqrt(1 - BETA2**step)
    return rate * unbias / (1 - BETA1**step), EPSILON * unbias


class Logistic:
    """Logistic regression on sparse rows; a step touches only the weights of the batch's features."""

    def __init__(self, tf: Any, job: Job) -> None:
        self._tf, self._x, self._y = tf, job.data.x_train, job.data.y_train
        self.weights = self.state = [tf.Variable(part) for part in job.weights]
        # Batches differ in their non-zeros, so the lengths stay open and nothing is compiled anew.
        ints, floats = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])
        sparse = [ints, floats, tf.TensorSpec([None], tf.int64)]
        self._compiled = tf.function(self._step, input_signature=[*sparse, floats, tf.TensorSpec([])], autograph=False)
        self._compiled_scores = tf.function(self._scores, input_signature=[*sparse, tf.TensorSpec([], tf.int32)])

    def learn(self, rows: NDArray[np.int64], rate: float, step: int) -> float:
        """Make one step on these rows; returns the loss before it."""
        return float(self._compiled(*parts(self._x[rows]), self._y[rows].astype("float32"), rate))

    def labels(self, x: Csr) -> NDArray[np.int64]:
        """The class of each row: 1 where the odds are better than even."""
        odds: NDArray[np.float32] = self._compiled_scores(*parts(x.compact()), len(x)).numpy()
        return (odds > 0).astype("int64")

    def _scores(self, columns: Tensor, values: Tensor, owners: Tensor, rows: Tensor) -> Tensor:
        """The log-odds of each row; those of a row without non-zeros are the bias."""
        products = self._tf.gather(self.weights[0], columns) * values
        return self._tf.math.unsorted_segment_sum(products, owners, rows) + self.weights[1]

    def _step(self, columns: Tensor, values: Tensor, owners: Tensor, y: Tensor, rate: Tensor) -> Tensor:
        tf, (weights, bias) = self._tf, self.weights
        z = self._scores(columns, values, owners, tf.size(y))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        moves = (tf.sigmoid(z) - y) * (rate / tf.cast(tf.size(y), tf.float32))
        changes = tf.gather(moves, owners) * values
        tf.raw_ops.ResourceScatterSub(resource=weights.handle, indices=columns, updates=changes)
        bias.assign_sub(tf.reduce_sum(moves, keepdims=True))
        return loss


def parts(x: Csr) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The non-zeros' columns and values, and the row each belongs to."""
    return x.columns, x.values, x.row_numbers()
