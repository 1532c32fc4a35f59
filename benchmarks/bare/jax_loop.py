"""A minimal loop in JAX: one compiled function for the step; the loss is read only at the end.

It runs in the adapter's process and so with its settings: the same number of threads, and synchronous calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bare import MOMENTUM, RATE


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    x, y = np.asarray(x), np.asarray(y)  # the threads are set by the adapter, which was opened before
    scores = cnn if model.kind == "cnn" else mlp

    def loss(parts: Any, images: Any, labels: Any) -> Any:
        found = scores(images, parts)
        return (jax.nn.logsumexp(found, 1) - found[jnp.arange(len(labels)), labels]).mean()

    def step(parts: Any, velocity: Any, images: Any, labels: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parts, images, labels)
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        return [part - RATE * v for part, v in zip(parts, velocity, strict=True)], velocity, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    state = [[jnp.array(part) for part in weights], [jnp.zeros(part.shape) for part in weights]]

    def loop(order: Any) -> None:
        parts, velocity = state
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            parts, velocity, value = compiled(parts, velocity, x[rows], y[rows])
        float(value)
        state[:] = parts, velocity

    return loop


def mlp(x: Any, parts: Any) -> Any:
    w1, b1, w2, b2 = parts
    return jnp.maximum(x @ w1 + b1, 0) @ w2 + b2


def cnn(x: Any, parts: Any) -> Any:
    k1, c1, k2, c2, *dense = parts
    x = x.reshape(-1, 28, 28, 1)
    for kernel, bias in ((k1, c1), (k2, c2)):
        forms = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=forms) + bias
        x = jax.lax.reduce_window(jnp.maximum(x, 0), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return mlp(x.reshape(-1, 256), dense)
