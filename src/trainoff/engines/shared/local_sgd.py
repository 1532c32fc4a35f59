"""Local SGD in rounds: workers get the weights and make some local steps, then the driver averages their weights.

Spark and Dask share the algorithm and bring a `WorkerPool` each, which sends weights and work. The mode `search` trains
one candidate per learning rate instead.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trainoff.data import Order
from trainoff.data.batch_order import share, spans
from trainoff.engines.contract import Engine, Job, Knob, Watch
from trainoff.engines.shared.shipping import WEIGHT_BYTES, expand
from trainoff.engines.sklearn import Sklearn, check_classes
from trainoff.models import Weights, flatten, unflatten
from trainoff.study.study import derive

if TYPE_CHECKING:
    from trainoff.data import Matrix
    from trainoff.study import Trial

Floats = NDArray[np.float32]


class ClusterSession(Protocol):
    """A session of a cluster, which explains failures and reports the workers' losses."""

    def failures(self) -> AbstractContextManager[None]: ...
    def report(self, watch: Watch) -> None: ...


class WorkerPool(Protocol):
    """The workers of a training."""

    workers: int
    sparse: bool  # whether only changed weights are sent

    def round(self, weights: Floats, first: int, last: int) -> Sequence[RoundResult]:
        """Make the steps from first to last on every worker; return the results in the order of the workers."""

    def search(self, watch: Watch) -> Floats:
        """Train the candidates of the mode `search`; return the best weights."""


def train(pool: WorkerPool, job: Job, watch: Watch, tau: int) -> Floats:
    """Train in rounds of `tau` steps; return the weights."""
    weights = flatten(job.weights)
    rounds = seen = 0
    timeline = Timeline(watch, time.time())
    for first, last in spans(job.order, tau):
        sent = time.time()
        done = pool.round(weights, first, last)
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
    if not pool.sparse:
        watch.count("least_bytes_per_round", 2 * pool.workers * WEIGHT_BYTES * job.model.parameter_count)
    timeline.report()
    return weights


def average(before: Floats, done: Sequence[RoundResult]) -> tuple[Floats, float]:
    """Return the means of the workers' weights and losses, weighted by their rows."""
    busy = [work for work in done if work.rows]
    shares = np.array([work.rows for work in busy]) / sum(work.rows for work in busy)
    sparse = bool(busy) and isinstance(busy[0].weights, SparseUpdate)
    mean = before.copy() if sparse else np.zeros_like(before)
    for part, work in zip(shares, busy, strict=True):
        if sparse:
            work.weights.add_to(mean, before, np.float32(part))
        else:
            mean += np.float32(part) * work.weights
    return mean, float(sum(part * work.loss for part, work in zip(shares, busy, strict=True)))


TAU = Knob(int, 10, "steps that every worker makes before the weights are averaged; 1 in the mode sync", minimum=1)


class LocalSgdEngine(Engine):
    """Local SGD with numpy: every worker makes tau steps, then their weights are averaged."""

    models = Sklearn.models  # and numpy's
    modes: ClassVar[tuple[str, ...]] = ("local", "sync")
    knobs: ClassVar[Mapping[str, Knob]] = {"tau": TAU}
    pool: WorkerPool

    def size(self, trial: Trial) -> int:
        """Return how many workers average their weights."""
        return trial.workers

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "tau": 1} if values["mode"] == "sync" else values

    def differs(self, trial: Trial) -> str | None:
        return differs(trial, self.size(trial))

    @staticmethod
    def make_learner(job: Job) -> LocalLearner:
        """Return a worker's learner."""
        from trainoff.engines.numpy import make_learner

        learner: LocalLearner = make_learner(job)
        return learner

    def train(self, job: Job, watch: Watch) -> None:
        session: ClusterSession = self.session  # type: ignore[attr-defined]  # of the cluster's base class
        with session.failures():
            search = job.mode == "search"
            weights = self.pool.search(watch) if search else train(self.pool, job, watch, job.params["tau"])
            self._trained = job, unflatten(job.model, weights)
            session.report(watch)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        job, weights = self._trained
        learner = self.predictor(job)
        learner.put(weights)
        return learner.predict(x)

    def predictor(self, job: Job) -> LocalLearner:
        """Return the driver's learner, which predicts."""
        return self.make_learner(job)


class SklearnLocalSgdEngine(LocalSgdEngine):
    """Local SGD with scikit-learn's `partial_fit`, or a search for the learning rate."""

    modes = ("local", "sync", "search")
    knobs: ClassVar[Mapping[str, Knob]] = {
        **LocalSgdEngine.knobs,
        "candidates": Knob(int, 4, "how many learning rates the mode search tries", minimum=1),
    }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        idle = "tau" if values["mode"] == "search" else "candidates"
        return super().settle({**values, idle: self.knobs[idle].default})

    def differs(self, trial: Trial) -> str | None:
        if trial.mode == "search":
            return "a search: every candidate is trained by itself, with a learning rate of its own"
        return Sklearn().differs(trial) or super().differs(trial)

    def refuses(self, trial: Trial) -> str | None:
        if trial.mode == "search" and trial.params["stop"]:
            return "the mode search trains every candidate to its end; leave `stop` out"
        return super().refuses(trial)

    def open(self, job: Job, watch: Watch) -> None:
        check_classes(job)
        with watch.phase("import"):
            import sklearn.linear_model
            import sklearn.neural_network  # noqa: F401  # for predict, so that its time is booked here
        super().open(job, watch)
        with watch.phase("compile"):
            self._predictor = self.make_learner(job)

    def predictor(self, job: Job) -> LocalLearner:
        return self._predictor

    @staticmethod
    def make_learner(job: Job) -> LocalLearner:
        import sklearn

        from trainoff.engines.sklearn import UNCHECKED, make_learner

        sklearn.set_config(**UNCHECKED)
        learner: LocalLearner = make_learner(job, NullWatch())
        return learner


def differs(trial: Trial, workers: int) -> str | None:
    """Return why averaging the workers' weights is not what the reference does, or None if it is."""
    if workers == 1:
        return None
    if trial.params["tau"] > 1:
        return f"every worker makes {trial.params['tau']} steps of its own before the weights are averaged"
    if trial.params["optimizer"] != "sgd":
        return f"every worker keeps the memory of {trial.params['optimizer']} for its own gradients"
    return None


MOST_TASKS = 100  # of every worker; further ones are only summed


class Timeline:
    """Reports to the watch when the workers were busy."""

    def __init__(self, watch: Watch, start: float) -> None:
        self._watch, self._start = watch, start
        self._busy: dict[str, float] = defaultdict(float)
        self._rounds, self._gc_s = 0, 0.0

    def add(self, done: Sequence[RoundResult], sent: float, back: float) -> None:
        """Add a round, sent out and returned at these times of the driver's clock."""
        self._rounds += 1
        for number, work in enumerate(done):
            self._busy[f"worker-{number}"] += work.ended - work.began
            self._gc_s += work.gc_s
            if self._rounds <= MOST_TASKS:
                ahead = clock_offset(work, sent, back) + self._start
                self._watch.task(f"worker-{number}", work.began - ahead, work.ended - ahead)

    def report(self) -> None:
        """Report the sums."""
        self._watch.breakdown("computing_s", self._busy)
        self._watch.count("python_gc_s", self._gc_s)


def clock_offset(work: RoundResult, sent: float, back: float) -> float:
    """Return how far a worker's clock is ahead of the driver's.

    That is 0 if its work lies between sending and return; otherwise the work is assumed to lie in the middle.
    """
    if sent <= work.began and work.ended <= back:
        return 0.0
    return (work.began + work.ended - sent - back) / 2


class LocalLearner(Protocol):
    """A worker's model and optimiser."""

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Make a step on these rows; return the loss before it, if it is known."""

    def put(self, weights: Weights) -> None:
        """Set the weights."""

    @property
    def weights(self) -> Weights: ...

    def predict(self, x: Any) -> NDArray[np.int64]:
        """Return the class of each row."""


LearnerFactory = Callable[[Job], LocalLearner]


@dataclass(frozen=True)
class BatchShare:
    """A slice of every global batch, for a worker that has all rows."""

    order: Order
    worker: int
    workers: int

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a step, by their indices in the worker's data."""
        return share(self.order.batch(step), self.worker, self.workers)


@dataclass(frozen=True)
class LocalRows:
    """Batches of the worker's own rows, shuffled in every epoch; all workers make the same number of steps."""

    order: Order  # of all rows; defines the steps of an epoch
    worker: int
    count: int

    def rows(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step - 1, self.order.steps_per_epoch)
        return share(_local_epoch(self, epoch), place, self.order.steps_per_epoch)


@lru_cache(maxsize=64)  # a process may hold several workers
def _local_epoch(selection: LocalRows, epoch: int) -> NDArray[np.int64]:
    order = selection.order
    seed = derive("own order", order.dataset, order.seed, selection.worker, epoch)
    return np.random.default_rng(seed).permutation(selection.count)


@dataclass(frozen=True)
class RoundResult:
    """A worker's result of one round."""

    rows: int
    loss: float  # the mean over the rows; NaN if the learner does not know it
    weights: Any  # a vector, or a `SparseUpdate` of it
    began: float  # by the clock of the worker's machine
    ended: float
    gc_s: float  # spent in Python's garbage collection


def make_steps(
    learner: LocalLearner, job: Job, selection: BatchShare | LocalRows, weights: Floats, first: int, last: int
) -> RoundResult:
    """Make the steps from first to last, starting from these weights."""
    began, gc_before = time.time(), gc_timer.seconds
    learner.put(unflatten(job.model, weights))
    rows, loss = 0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # the driver's watch notices
        for step in range(first, last + 1):
            mine = selection.rows(step)
            if len(mine):  # the last batch of an epoch may have fewer rows than there are workers
                before = learner.step(step, mine, float(job.rates[step - 1]))
                loss += len(mine) * (np.nan if before is None else before)
                rows += len(mine)
    after = flatten(learner.weights).astype(np.float32, copy=False)
    return RoundResult(rows, loss / max(rows, 1), after, began, time.time(), gc_timer.seconds - gc_before)


class GcTimer(threading.local):
    """The seconds of Python's garbage collection in this thread, which belongs to one worker."""

    seconds = since = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self.since = now
        else:
            self.seconds += now - self.since


gc_timer = GcTimer()
gc.callbacks.append(gc_timer)


class NullWatch:
    """A watch that ignores the phases of a learner on a worker."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


HELD_OUT = 10  # one row in ten validates the candidates


@dataclass(frozen=True)
class RateCandidate:
    """A network trained with a multiple of the study's learning rate."""

    factor: float
    accuracy: float  # on the held-out rows
    weights: Floats


def factors(count: int) -> list[float]:
    """Return multiples of the learning rate: powers of two around 1."""
    return [2.0 ** (number - count // 2) for number in range(count)]


def select_best(found: Sequence[RateCandidate], job: Job, watch: Watch) -> Floats:
    """Report the best candidate to the watch; return its weights."""
    best = max(found, key=lambda candidate: candidate.accuracy)
    seen = len(found) * training_part(job).order.rows * job.order.epochs
    watch.progress(job.order.steps, None, seen)
    watch.due()
    watch.snapshot(seen, unflatten(job.model, best.weights))
    watch.count("best_learning_rate", best.factor * job.params["learning_rate"])
    watch.count("candidates", len(found))
    return best.weights


def training_part(job: Job) -> Job:
    """Return the job on the rows that are not held out."""
    rows = max(1, job.order.rows - job.order.rows // HELD_OUT)
    return replace(job, order=replace(job.order, rows=rows, batch_size=min(job.order.batch_size, rows)))


def train_candidate(make_learner: LearnerFactory, job: Job, factor: float) -> RateCandidate:
    """Train and validate one candidate on a worker, which has all rows."""
    job = training_part(job)
    job = replace(job, rates=job.rates * factor)
    # At random, because the rows of a file may be ordered by class.
    shuffled = np.random.default_rng(job.order.seed).permutation(len(job.data.y_train))
    kept, held_out = shuffled[: job.order.rows], shuffled[job.order.rows :]
    learner = make_learner(job)
    with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too large diverges, and loses
        for step, rows in job.order.batches():
            learner.step(step, kept[rows], float(job.rates[step - 1]))
    data = job.data
    weights = flatten(learner.weights).astype(np.float32, copy=False)
    if not len(held_out) or not np.isfinite(weights).all():
        return RateCandidate(factor, 0.0, weights)
    x = data.x_train[held_out]
    right = learner.predict(x if data.sparse else expand(np.asarray(x))) == data.y_train[held_out]
    return RateCandidate(factor, float(np.mean(right)), weights)


@dataclass(frozen=True)
class SparseUpdate:
    """The changed elements of a vector."""

    indices: NDArray[np.int32]
    values: Floats

    @staticmethod
    def between(before: Floats, after: Floats) -> SparseUpdate:
        indices = np.flatnonzero(before != after).astype(np.int32)
        return SparseUpdate(indices, after[indices])

    def apply(self, weights: Floats) -> None:
        """Apply the update to a vector."""
        weights[self.indices] = self.values

    def add_to(self, mean: Floats, before: Floats, part: np.float32) -> None:
        """Add a fraction of the update to a mean."""
        mean[self.indices] += part * (self.values - before[self.indices])
