"""The training rows in the memory of a worker, which reads them from its own files; none pass the coordinator."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.engines.shared.shipping import LEVELS

CHUNK = 16 * 2**20  # bytes that are read at a time, beside the room for all

Tensor = Any


def take(tf: Any, held: Tensor, rows: Tensor) -> Tensor:
    """Some rows out of what `load` put there; pictures that lie as bytes become numbers."""
    taken = tf.gather(held, rows)
    return tf.cast(taken, tf.float32) / LEVELS if taken.dtype == tf.uint8 else taken


def load(tf: Any, source: Any, device: str) -> Tensor:
    """A variable on the device with the content of an array in a file, an `InFile`.

    The worker there opens the file and decodes it.
    """
    dtype = np.dtype(source.dtype)
    width = prod(source.shape[1:]) * dtype.itemsize
    behind = Path(source.path).stat().st_size - source.offset
    with tf.device(device):
        variable = tf.Variable(tf.zeros(source.shape, dtype))
        tf.gather(variable, [0]).numpy()  # graphs do not wait for assignments

    def read(first: Tensor, last: Tensor) -> Tensor:
        with tf.device(device):
            before, after = source.offset + first * width, behind - last * width
            record = tf.data.FixedLengthRecordDataset(source.path, (last - first) * width, before, after)
            values = tf.io.decode_raw(record.get_single_element(), dtype)
            part = tf.reshape(values, [-1, *source.shape[1:]])
            places = tf.range(tf.cast(first, tf.int32), tf.cast(last, tf.int32))
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=places, updates=part)
            return tf.identity(last)

    read = tf.function(read, [tf.TensorSpec([], tf.int64)] * 2, autograph=False)
    step = max(1, CHUNK // width)
    for first in range(0, source.shape[0], step):
        read(first, min(first + step, source.shape[0]))
    return variable
