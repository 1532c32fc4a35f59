"""Training by rounds: weights go out, every worker makes some steps of its own, their weights are averaged.

The same for Spark and for Dask: `desk` is what a worker does, `drive` what the driver does, `search` tries many
learning rates instead. How weights and work travel is each cluster's own.
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
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Matrix
    from trainoff.study import Trial

    class Connection(Protocol):
        """A connection to a cluster, which can explain failures and tell what became of the workers."""

        def failures(self) -> AbstractContextManager[None]: ...
        def report(self, watch: Watch) -> None: ...


class WorkerPool(Protocol):
    """The workers of a training, wherever they are."""

    workers: int
    sparse: bool  # whether only those weights travel that a round has changed

    def round(self, weights: Floats, first: int, last: int) -> Sequence[RoundResult]:
        """Everybody goes on from the weights with the steps from first to last; what each brings back, in order."""


class SearchingWorkerPool(WorkerPool, Protocol):
    """A pool that can search, too."""

    def search(self, watch: Watch) -> Floats: ...


def train(pool: WorkerPool, job: Job, watch: Watch, tau: int) -> Floats:
    """All rounds of the job, each of `tau` steps; returns the weights they lead to."""
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
        watch.count("least_bytes_per_round", 2 * pool.workers * WEIGHT_BYTES * job.model.parameters)
    timeline.report()
    return weights


def average(before: Floats, done: Sequence[RoundResult]) -> tuple[Floats, float]:
    """The mean of the weights that the workers came to, and of their losses, each counted by its rows."""
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
    """Every worker makes tau steps of its own in numpy, then their weights are averaged."""

    models = frozenset({"mlp", "logreg"})
    modes: ClassVar[tuple[str, ...]] = ("local", "sync")
    knobs: ClassVar[Mapping[str, Knob]] = {"tau": TAU}
    pool: SearchingWorkerPool

    def size(self, trial: Trial) -> int:
        """How many workers average their weights."""
        return trial.workers

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "tau": 1} if values["mode"] == "sync" else values

    def differs(self, trial: Trial) -> str | None:
        return differs(trial, self.size(trial))

    @staticmethod
    def make_learner(job: Job) -> LocalLearner:
        """What learns on a worker."""
        from trainoff.engines.numpy import make_learner

        learner: LocalLearner = make_learner(job)
        return learner

    def train(self, job: Job, watch: Watch) -> None:
        connection: Connection = self.session  # type: ignore[attr-defined]  # of the cluster's base class
        with connection.failures():
            self.fit(job, watch)
            connection.report(watch)

    def fit(self, job: Job, watch: Watch) -> None:
        """Train, and keep what came of it."""

        self.keep(job, train(self.pool, job, watch, job.params["tau"]))

    def keep(self, job: Job, weights: Floats) -> None:
        from trainoff.models import unflatten

        self._trained = job, unflatten(job.model, weights)

    def predict(self, x: Matrix) -> NDArray[np.int64]:
        job, weights = self._trained
        learner = self.predictor(job)
        learner.put(weights)
        return learner.labels(x)

    def predictor(self, job: Job) -> LocalLearner:
        """What finds the classes of rows, in the driver."""
        return self.make_learner(job)


class SklearnLocalSgdEngine(LocalSgdEngine):
    """The same with scikit-learn's classifiers, `partial_fit` by `partial_fit`; or a search for the learning rate."""

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

    def fit(self, job: Job, watch: Watch) -> None:
        if job.mode != "search":
            super().fit(job, watch)
        else:
            self.keep(job, self.pool.search(watch))


def differs(trial: Trial, workers: int) -> str | None:
    """Why averaging the weights of so many workers is not what the reference does, or None where it is."""
    if workers == 1:
        return None
    if trial.params["tau"] > 1:
        return f"every worker makes {trial.params['tau']} steps of its own before the weights are averaged"
    if trial.params["optimizer"] != "sgd":
        return f"every worker keeps the memory of {trial.params['optimizer']} for its own gradients"
    return None


MOST_TASKS = 100  # of every worker; the rest is only added up


class Timeline:
    """Tells the watch what the workers did, since training began at some time."""

    def __init__(self, watch: Watch, start: float) -> None:
        self._watch, self._start = watch, start
        self._busy: dict[str, float] = defaultdict(float)
        self._rounds, self._gc_s = 0, 0.0

    def add(self, done: Sequence[RoundResult], sent: float, back: float) -> None:
        """One round is over, which was sent out and came back at these times of the driver's clock."""
        self._rounds += 1
        for number, work in enumerate(done):
            self._busy[f"worker-{number}"] += work.ended - work.began
            self._gc_s += work.gc_s
            if self._rounds <= MOST_TASKS:
                ahead = clock_offset(work, sent, back) + self._start
                self._watch.task(f"worker-{number}", work.began - ahead, work.ended - ahead)

    def report(self) -> None:
        """Training is over."""
        self._watch.breakdown("computing_s", self._busy)
        self._watch.count("python_gc_s", self._gc_s)


def clock_offset(work: RoundResult, sent: float, back: float) -> float:
    """How far a worker's clock is ahead of the driver's: not at all, if its work lies between sending and coming back.

    Else the work is taken to lie in the middle.
    """
    if sent <= work.began and work.ended <= back:
        return 0.0
    return (work.began + work.ended - sent - back) / 2


Floats = NDArray[np.float32]


class LocalLearner(Protocol):
    """What sits at a desk."""

    def step(self, step: int, rows: NDArray[np.int64], rate: float) -> float | None:
        """Learn from these rows; returns the loss before, if it is known."""

    def put(self, weights: Weights) -> None:
        """Go on from these weights."""

    @property
    def weights(self) -> Weights: ...

    def labels(self, x: Any) -> NDArray[np.int64]:
        """The class of each row."""


LearnerFactory = Callable[[Job], LocalLearner]


class RowSelection(Protocol):
    """Which rows a worker learns from in a step, by their places in what it has."""

    def rows(self, step: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class BatchShare:
    """The worker has all rows, and takes its slice of every global batch."""

    order: Order
    worker: int
    workers: int

    def rows(self, step: int) -> NDArray[np.int64]:
        return share(self.order.batch(step), self.worker, self.workers)


@dataclass(frozen=True)
class LocalRows:
    """The worker has so many rows of its own, and walks through them in an order of its own, as fast as the others."""

    order: Order  # of all rows; says how many steps make an epoch
    worker: int
    count: int

    def rows(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step - 1, self.order.steps_per_epoch)
        return share(_own_epoch(self, epoch), place, self.order.steps_per_epoch)


@lru_cache(maxsize=64)  # a process may hold the desks of several workers
def _own_epoch(portion: LocalRows, epoch: int) -> NDArray[np.int64]:
    order = portion.order
    seed = derive("own order", order.dataset, order.seed, portion.worker, epoch)
    return np.random.default_rng(seed).permutation(portion.count)


@dataclass(frozen=True)
class RoundResult:
    """What a worker brings back."""

    rows: int
    loss: float  # the mean over the rows; NaN where the learner does not know it
    weights: Any  # one vector, or a `Change` of it
    began: float  # by the clock of the worker's machine
    ended: float
    gc_s: float  # of that time, what Python's garbage collection took


def make_steps(
    learner: LocalLearner, job: Job, portion: RowSelection, weights: Floats, first: int, last: int
) -> RoundResult:
    """Go on from these weights with the steps from first to last."""
    began, collected = time.time(), collecting.seconds
    learner.put(unflatten(job.model, weights))
    rows, loss = 0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # the driver's watch notices
        for step in range(first, last + 1):
            mine = portion.rows(step)
            if len(mine):  # the last batch of an epoch may have fewer rows than there are workers
                before = learner.step(step, mine, float(job.rates[step - 1]))
                loss += len(mine) * (np.nan if before is None else before)
                rows += len(mine)
    after = flatten(learner.weights).astype(np.float32, copy=False)
    return RoundResult(rows, loss / max(rows, 1), after, began, time.time(), collecting.seconds - collected)


class Collecting(threading.local):
    """How long Python's garbage collection has taken in this thread, which is a worker's own."""

    seconds = since = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self.since = now
        else:
            self.seconds += now - self.since


collecting = Collecting()
gc.callbacks.append(collecting)


class NullWatch:
    """A watch for learners that speak: here nobody listens."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


HELD_BACK = 10  # one row in so many judges the candidates


@dataclass(frozen=True)
class RateCandidate:
    """A network that was trained with a multiple of the study's learning rate."""

    factor: float
    accuracy: float  # on the rows that were held back
    weights: Floats


def factors(count: int) -> list[float]:
    """So many multiples of the learning rate, by factors of two around 1."""
    return [2.0 ** (number - count // 2) for number in range(count)]


def select_best(found: Sequence[RateCandidate], job: Job, watch: Watch) -> Floats:
    """The weights of the best candidate, after telling the watch of it."""
    best = max(found, key=lambda candidate: candidate.accuracy)
    seen = len(found) * training_part(job).order.rows * job.order.epochs
    watch.progress(job.order.steps, None, seen)
    watch.due()
    watch.snapshot(seen, unflatten(job.model, best.weights))
    watch.count("best_learning_rate", best.factor * job.params["learning_rate"])
    watch.count("candidates", len(found))
    return best.weights


def training_part(job: Job) -> Job:
    """The job on as many rows as are left when some are held back."""
    rows = max(1, job.order.rows - job.order.rows // HELD_BACK)
    return replace(job, order=replace(job.order, rows=rows, batch_size=min(job.order.batch_size, rows)))


def train_candidate(make_learner: LearnerFactory, job: Job, factor: float) -> RateCandidate:
    """Train one candidate and judge it. Run on a worker, which has all rows."""
    job = training_part(job)
    job = replace(job, rates=job.rates * factor)
    # Drawn at random, because the rows of a file may be in the order of their classes.
    mixed = np.random.default_rng(job.order.seed).permutation(len(job.data.y_train))
    kept, judging = mixed[: job.order.rows], mixed[job.order.rows :]
    learner = make_learner(job)
    with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too large loses by itself
        for step, rows in job.order.batches():
            learner.step(step, kept[rows], float(job.rates[step - 1]))
    data = job.data
    weights = flatten(learner.weights).astype(np.float32, copy=False)
    if not len(judging) or not np.isfinite(weights).all():
        return RateCandidate(factor, 0.0, weights)
    x = data.x_train[judging]
    right = learner.labels(x if data.sparse else expand(np.asarray(x))) == data.y_train[judging]
    return RateCandidate(factor, float(np.mean(right)), weights)


@dataclass(frozen=True)
class SparseUpdate:
    """Some places of a vector, and their new values."""

    places: NDArray[np.int32]
    values: Floats

    @staticmethod
    def between(before: Floats, after: Floats) -> SparseUpdate:
        places = np.flatnonzero(before != after).astype(np.int32)
        return SparseUpdate(places, after[places])

    def apply(self, weights: Floats) -> None:
        """Make the change in a vector."""
        weights[self.places] = self.values

    def add_to(self, mean: Floats, before: Floats, part: np.float32) -> None:
        """Add a part of the change from `before` to a mean."""
        mean[self.places] += part * (self.values - before[self.places])
