"""A search for the learning rate: every candidate is a whole network that one worker trains; the best is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainoff.engines.compact import expand
from trainoff.engines.contract import Job, Watch
from trainoff.engines.shared.local_sgd.worker import Floats, Maker
from trainoff.models import flatten, unflatten

HELD_BACK = 10  # one row in so many judges the candidates


@dataclass(frozen=True)
class Candidate:
    """A network that was trained with a multiple of the study's learning rate."""

    factor: float
    accuracy: float  # on the rows that were held back
    weights: Floats


def factors(count: int) -> list[float]:
    """So many multiples of the learning rate, by factors of two around 1."""
    return [2.0 ** (number - count // 2) for number in range(count)]


def take_best(found: Sequence[Candidate], job: Job, watch: Watch) -> Floats:
    """The weights of the best candidate, after telling the watch of it."""
    best = max(found, key=lambda candidate: candidate.accuracy)
    seen = len(found) * judged(job).order.rows * job.order.epochs
    watch.progress(job.order.steps, None, seen)
    watch.due()
    watch.snapshot(seen, unflatten(job.model, best.weights))
    watch.count("best_learning_rate", best.factor * job.params["learning_rate"])
    watch.count("candidates", len(found))
    return best.weights


def judged(job: Job) -> Job:
    """The job on as many rows as are left when some are held back."""
    rows = max(1, job.order.rows - job.order.rows // HELD_BACK)
    return replace(job, order=replace(job.order, rows=rows, batch_size=min(job.order.batch_size, rows)))


def attempt(maker: Maker, job: Job, factor: float) -> Candidate:
    """Train one candidate and judge it. Run on a worker, which has all rows."""
    job = judged(job)
    job = replace(job, rates=job.rates * factor)
    # Drawn at random, because the rows of a file may be in the order of their classes.
    mixed = np.random.default_rng(job.order.seed).permutation(len(job.data.y_train))
    kept, judging = mixed[: job.order.rows], mixed[job.order.rows :]
    learner = maker(job)
    with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too large loses by itself
        for step, rows in job.order.batches():
            learner.step(step, kept[rows], float(job.rates[step - 1]))
    data = job.data
    weights = flatten(learner.weights).astype(np.float32, copy=False)
    if not len(judging) or not np.isfinite(weights).all():
        return Candidate(factor, 0.0, weights)
    x = data.x_train[judging]
    right = learner.labels(x if data.sparse else expand(np.asarray(x))) == data.y_train[judging]
    return Candidate(factor, float(np.mean(right)), weights)
