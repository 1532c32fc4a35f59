"""A minimal loop in TensorFlow: one compiled function for the step, and TensorFlow's kernel for the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bare import MOMENTUM, RATE
from trainoff.engines.tensorflow.network import shared


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    x, y = np.asarray(x), np.asarray(y)  # the threads are set by the adapter, which was opened before
    parts = [tf.Variable(part) for part in weights]
    velocity = [tf.Variable(tf.zeros_like(part)) for part in weights]
    scores = cnn if model.kind == "cnn" else mlp

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(images, parts))
            loss = tf.reduce_mean(found)
        for part, v, g in zip(parts, velocity, tape.gradient(loss, parts), strict=True):
            tf.raw_ops.ResourceApplyMomentum(var=part.handle, accum=v.handle, lr=RATE, grad=g, momentum=MOMENTUM)
        return loss

    signature = [tf.TensorSpec([batch, x.shape[1]]), tf.TensorSpec([batch], tf.int64)]
    compiled = tf.function(step, autograph=False, input_signature=signature).get_concrete_function()

    images, images_tensor = shared(tf, (batch, x.shape[1]), np.float32)
    labels, labels_tensor = shared(tf, (batch,), np.int64)

    def loop(order: Any) -> None:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            np.take(x, rows, axis=0, out=images, mode="clip")
            np.take(y, rows, out=labels, mode="clip")
            float(compiled(images_tensor, labels_tensor))

    return loop


def mlp(x: Any, parts: Any) -> Any:
    w1, b1, w2, b2 = parts
    return tf.nn.bias_add(tf.nn.relu(tf.nn.bias_add(x @ w1, b1)) @ w2, b2)


def cnn(x: Any, parts: Any) -> Any:
    k1, c1, k2, c2, *dense = parts
    x = tf.reshape(x, [-1, 28, 28, 1])
    for kernel, bias in ((k1, c1), (k2, c2)):
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias)), 2, 2, "VALID")
    return mlp(tf.reshape(x, [-1, 256]), dense)
