"""The classes of rows, found by the TensorFlow processes on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.tf_on_spark.compat import Access
from trainoff.engines.tf_on_spark.feed import Tap


@dataclass(frozen=True)
class Question:
    """Rows whose classes are asked for; by the weights that came last."""

    x: NDArray[np.float32]
    weights: NDArray[np.float32] | None


@dataclass(frozen=True)
class Asking:
    """What the driver asks of every executor."""

    access: Access
    weights: Any  # broadcast: one vector


def ask(asking: Asking, blocks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.int64]]:
    """The classes of a partition's rows, in their order. Run by Spark."""
    manager = asking.access.manager()
    there, back = manager.get_queue("input"), manager.get_queue("output")
    weights = asking.weights.value
    for x in blocks:
        there.put(Question(x, weights))
        weights = None
        yield back.get()
        back.task_done()


def answer(tf: Any, model: Any, question: Question, tap: Tap, labels: Any) -> Any:
    """Answer a question; returns what labels by its weights, for the next one."""
    from trainoff.engines.tensorflow import predict
    from trainoff.engines.tensorflow.network import labeller
    from trainoff.models import unflatten

    if question.weights is not None:
        labels = labeller(tf, model, [tf.constant(part) for part in unflatten(model, question.weights)])
    tap.give(predict(labels, question.x))
    return labels
