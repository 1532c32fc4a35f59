"""The loop that every engine walks which makes one step per batch in the process it was opened in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainoff.engines.contract import Job, Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.models import Weights

Learn = Callable[[int, "NDArray[np.int64]", float], "float | None"]


def walk(job: Job, watch: Watch, learn: Learn, weights: Callable[[], Weights]) -> None:
    """Make every step of the job and tell the watch of it.

    `learn(step, rows, rate)` makes one and returns the loss before it, if it is known; `weights()` fetches the weights
    for a snapshot.
    """
    for step, rows in job.order.batches():
        watch.progress(step, learn(step, rows, float(job.rates[step - 1])))
        if watch.due():
            watch.snapshot(job.order.samples_after(step), weights())
        if watch.should_stop:
            break
