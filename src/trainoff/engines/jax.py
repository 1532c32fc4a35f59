"""jax: the network as a pure function, compiled by XLA and called once per batch on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from trainoff.engines.contract import Engine, Job, Watch, families
from trainoff.engines.shared.watch import train_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.models import ConvLayer, DenseLayer, PoolLayer

PREDICT_ROWS = 1024  # at a time, so that the hidden layers fit into the CPU cache
MEMORY = {"sgd": 0, "momentum": 1, "adam": 2}  # numbers that the optimiser stores for each weight

Array = Any  # of JAX, or a tracer


class Jax(Engine):
    """JAX: a step is one compiled function from the old weights to the new."""

    name = "jax"
    about = "JAX in float32 on the CPU, one process"
    models = families("Network")
    package = extra = "jax"
    modules = ("jax",)

    def open(self, job: Job, watch: Watch) -> None:
        data, threads = job.data, ceil(job.cores)
        os.environ.update(JAX_PLATFORMS="cpu", NPROC=str(threads))  # read when JAX starts: the threads of XLA's pools
        with watch.phase("import"):
            import jax
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # every step is waited for
        watch.count("threads", threads)
        self._step = jax.jit(partial(make_step, job), donate_argnums=0)  # the new weights reuse the memory of the old
        self._labels = jax.jit(lambda weights, x: scores(job.model, weights, x).argmax(1))
        with watch.phase("compile"):  # for each number of rows
            for size in job.order.batch_sizes:
                self._step(start(job), data.x_train[:size], data.y_train[:size], 0.0, 1)[1].block_until_ready()
            self._state = start(job)
            self.predict(data.x_test[: PREDICT_ROWS + len(data.x_test) % PREDICT_ROWS])

    def train(self, job: Job, watch: Watch) -> None:
        import numpy as np

        x, y = np.asarray(job.data.x_train), np.asarray(job.data.y_train)

        def train_step(step: int, rows: NDArray[np.int64], rate: float) -> float:
            self._state, loss = self._step(self._state, x[rows], y[rows], rate, step)
            return float(np.asarray(loss))

        names = [parameter.name for parameter in job.model.parameters]
        train_loop(job, watch, train_step, lambda: [np.asarray(self._state[0][name]) for name in names])

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        import numpy as np

        parts = np.split(x, range(PREDICT_ROWS, len(x), PREDICT_ROWS))
        return np.concatenate([np.asarray(self._labels(self._state[0], part), np.int64) for part in parts])


def start(job: Job) -> tuple[dict[str, Array], dict[str, list[Array]]]:
    """Return the weights where training begins, and for each the zeros that the optimiser begins with."""
    import jax.numpy as jnp

    weights, copies = job.model.by_name(job.weights), MEMORY[job.params["optimizer"]]
    memory = {name: [jnp.zeros(part.shape) for _ in range(copies)] for name, part in weights.items()}
    return {name: jnp.array(part) for name, part in weights.items()}, memory


def make_step(job: Job, state: Any, x: Array, y: Array, rate: Array, step: Array) -> tuple[Any, Array]:
    """Return the weights and the optimiser's state after one step, and the loss before it."""
    import jax

    weights, memory = state
    loss, gradient = jax.value_and_grad(mean_loss)(weights, job.model, x, y)
    mu = job.params["momentum"]
    moved = {name: update(w, memory[name], gradient[name], rate, step, mu) for name, w in weights.items()}
    return ({name: w for name, (w, _) in moved.items()}, {name: kept for name, (_, kept) in moved.items()}), loss


def mean_loss(weights: dict[str, Array], model: Any, x: Array, y: Array) -> Array:
    """Return the mean cross-entropy with the L2 term."""
    import jax

    found, rows = scores(model, weights, x), jax.numpy.arange(len(y))
    loss = (jax.nn.logsumexp(found, axis=1) - found[rows, y]).mean()
    return loss + model.l2 / 2 * sum((weights[name] ** 2).sum() for name in model.regularised) if model.l2 else loss


def scores(model: Any, weights: dict[str, Array], x: Array) -> Array:
    """Return the output of the last layer, before the softmax."""
    for layer in model.layers:
        x = LAYER_BUILDERS[type(layer).__name__](layer, x, *(weights[parameter.name] for parameter in layer.parameters))
    return x


def dense(layer: DenseLayer, x: Array, weight: Array, bias: Array) -> Array:
    return activate(layer.activation, x.reshape(-1, layer.inputs) @ weight + bias)


def convolve(layer: ConvLayer, x: Array, weight: Array, bias: Array) -> Array:
    import jax

    x, forms = x.reshape(-1, layer.height, layer.width, layer.inputs), ("NHWC", "HWIO", "NHWC")
    sums = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=forms) + bias
    return activate(layer.activation, sums)


def pool(layer: PoolLayer, x: Array) -> Array:
    import jax

    return jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def activate(name: str | None, sums: Array) -> Array:
    import jax

    return getattr(jax.nn, name)(sums) if name else sums  # JAX has our names


LAYER_BUILDERS: Mapping[str, Callable[..., Array]] = {"DenseLayer": dense, "ConvLayer": convolve, "PoolLayer": pool}


def update(w: Array, memory: list[Array], g: Array, rate: Array, step: Array, mu: float) -> tuple[Array, list[Array]]:
    """Return the new weights of one parameter, and the optimiser's state for it, from their gradient."""
    from trainoff.models import BETA1, BETA2, EPSILON

    if len(memory) < 2:
        velocity = mu * memory[0] + g if memory else g
        return w - rate * velocity, [velocity] if memory else []
    m, s = BETA1 * memory[0] + (1 - BETA1) * g, BETA2 * memory[1] + (1 - BETA2) * g**2
    return w - rate / (1 - BETA1**step) * m / ((s / (1 - BETA2**step)) ** 0.5 + EPSILON), [m, s]
