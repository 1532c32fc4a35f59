"""What the driver does: round by round it sends the weights out and averages what comes back.

With one step a round and plain gradient descent the average is the step on the whole batch, to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trainoff.data.order import spans
from trainoff.engines.contract import Job, Watch
from trainoff.engines.rounds.change import Change
from trainoff.engines.rounds.timeline import Timeline
from trainoff.engines.shared.local_sgd.worker import Floats, Work
from trainoff.engines.shared.shipping import WEIGHT_BYTES
from trainoff.models import flatten, unflatten


class Crew(Protocol):
    """The workers of a training, wherever they are."""

    workers: int
    sparse: bool  # whether only those weights travel that a round has changed

    def round(self, weights: Floats, first: int, last: int) -> Sequence[Work]:
        """Everybody goes on from the weights with the steps from first to last; what each brings back, in order."""


def train(crew: Crew, job: Job, watch: Watch, tau: int) -> Floats:
    """All rounds of the job, each of `tau` steps; returns the weights they lead to."""
    weights = flatten(job.weights)
    rounds = seen = 0
    timeline = Timeline(watch, time.time())
    for first, last in spans(job.order, tau):
        sent = time.time()
        done = crew.round(weights, first, last)
        back = time.time()
        weights, loss = average(weights, done)
        rounds += 1
        seen += sum(work.rows for work in done)
        timeline.add(done, sent, back)
        watch.progress(last, None if np.isnan(loss) and np.isfinite(weights).all() else loss, seen)
        if watch.due():
            watch.snapshot(seen, unflatten(job.model, weights))
        if watch.should_stop:
            break
    watch.count("rounds", rounds)
    if not crew.sparse:
        watch.count("least_bytes_per_round", 2 * crew.workers * WEIGHT_BYTES * job.model.parameters)
    timeline.tell()
    return weights


def average(before: Floats, done: Sequence[Work]) -> tuple[Floats, float]:
    """The mean of the weights that the workers came to, and of their losses, each counted by its rows."""
    busy = [work for work in done if work.rows]
    shares = np.array([work.rows for work in busy]) / sum(work.rows for work in busy)
    sparse = bool(busy) and isinstance(busy[0].weights, Change)
    mean = before.copy() if sparse else np.zeros_like(before)
    for part, work in zip(shares, busy, strict=True):
        if sparse:
            work.weights.add_to(mean, before, np.float32(part))
        else:
            mean += np.float32(part) * work.weights
    return mean, float(sum(part * work.loss for part, work in zip(shares, busy, strict=True)))
