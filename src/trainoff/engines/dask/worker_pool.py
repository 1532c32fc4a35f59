"""The workers of local SGD on Dask: an actor on every worker, which the client calls directly; and their rows."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.delayed import delayed

from trainoff.data import Csr
from trainoff.engines.contract import Job, Watch, WorkerFailed
from trainoff.engines.dask.session import EXPLAIN_S, DaskConnection, WorkerLost
from trainoff.engines.shared.local_sgd import (
    BatchShare,
    Floats,
    LearnerFactory,
    LocalRows,
    RoundResult,
    SparseUpdate,
    factors,
    make_steps,
    select_best,
    train_candidate,
)
from trainoff.engines.shared.recovery import run_with_polling
from trainoff.engines.shared.shipping import compact, without_rows
from trainoff.engines.shared.storage import Storage, rows_name
from trainoff.errors import TrainoffError
from trainoff.models import flatten
from trainoff.study.study import derive

POLL_S = 0.25
PENDING = (TimeoutError, UnboundLocalError)  # the latter is Dask's own, of a cancelled call
UNFINISHED: Any = object()  # in place of a result


class DaskWorkerPool:
    """An actor per worker. With `partitioned`, every worker has a part of the rows; else each has all of them."""

    def __init__(self, session: DaskConnection, job: Job, make_learner: LearnerFactory, *, partitioned: bool) -> None:
        self._session, self._job, self._partitioned = session, job, partitioned
        self._make_learner, self._lean = make_learner, without_rows(job)
        self.workers = job.workers
        self.sparse = job.model.sparse  # few of many weights change
        self._sent: Floats | None = None  # the weights that all actors have; None if one may have none
        self._replaced = False  # whether an actor was replaced in this round
        self._round_samples = 0  # of a worker
        self._shares = store_rows(job, partitioned)

    def start_actors(self) -> None:
        """Have every worker load its rows and start its actor."""
        self._rows: list[Any] = [None] * self.workers
        self._actors: list[Any] = [None] * self.workers
        self._prepare(range(self.workers))

    def _prepare(self, workers: Iterable[int]) -> set[int]:
        """Prepare some workers, and those that must be replaced meanwhile; returns all of them."""
        waiting = list(workers)
        prepared = set(waiting)
        for worker in waiting:
            self._rows[worker] = self._load(worker)
        while waiting:
            try:
                self._actors[waiting[0]] = self._start_actor(waiting[0])
                waiting.pop(0)
            except WorkerLost as lost:
                self._session.replace(lost.index)
                self._rows[lost.index] = self._load(lost.index)
                waiting += [] if lost.index in waiting else [lost.index]
                prepared.add(lost.index)
        return prepared

    def _load(self, worker: int) -> Any:
        """Return the rows of a worker as a Dask collection, computed on that worker."""
        part = delayed(load, pure=False)(self._shares[worker])
        return self._session.client.compute(part, workers=[self._session.addresses[worker]])

    def _start_actor(self, worker: int) -> Any:
        """Start an actor; raises WorkerLost if a worker is gone, for whose rows Dask would wait for ever."""
        args = (self._rows[worker], self._lean, self._make_learner, worker, self._partitioned)
        address = [self._session.addresses[worker]]
        actor = self._session.client.submit(WorkerActor, *args, actor=True, workers=address, pure=False)
        try:
            return self._wait(actor)
        except FileNotFoundError as error:
            raise TrainoffError(
                f"the workers cannot read the rows at {self._shares[worker].storage.url}; name with `storage` a "
                "place that they can reach"
            ) from error

    def _wait(self, future: Any) -> Any:
        """Wait for a result; raises WorkerLost if a worker is gone."""
        while True:
            try:
                return future.result(timeout=POLL_S)
            except PENDING:
                self._session.check()

    def round(self, weights: Floats, first: int, last: int) -> list[RoundResult]:
        """Have every worker make the steps from first to last."""
        seen = self._job.order.samples_after
        self._round_samples = (seen(last) - seen(first - 1)) // self.workers
        update = SparseUpdate.between(self._sent, weights) if self.sparse and self._sent is not None else weights
        self._replaced = False
        calls = [self._call(worker, update, first, last) for worker in range(self.workers)]
        results = [UNFINISHED] * self.workers
        for worker in range(self.workers):
            while results[worker] is UNFINISHED:
                try:
                    results[worker] = self._result(worker, calls[worker])
                except WorkerLost as lost:
                    for new in self._replace(lost.index):
                        if results[new] is UNFINISHED:
                            calls[new] = self._call(new, weights, first, last)
        self._sent = None if self._replaced else weights  # a new actor may have had no work in this round
        for worker, result in enumerate(results):
            if isinstance(result, TaskFailure):
                raise WorkerFailed(f"worker-{worker}", result.traceback)
        return results

    def _call(self, worker: int, weights: Any, first: int, last: int) -> Any:
        try:
            return self._actors[worker].work(weights, first, last)
        except RuntimeError:  # Dask knows already that the actor is gone
            return None

    def _result(self, worker: int, call: Any) -> Any:
        """Wait for the result of a call; raises WorkerLost if a worker is gone or has lost its actor."""
        if call is not None:
            with suppress(OSError, RuntimeError, KeyError):
                return self._wait(call)
        self._session.check(EXPLAIN_S)
        raise WorkerLost(worker)

    def _replace(self, worker: int) -> set[int]:
        """Replace a worker that is gone, with its rows and its actor; returns all workers that are new."""
        start, self._replaced = time.monotonic(), True
        self._session.replace(worker, self._round_samples)
        prepared = self._prepare([worker])
        self._session.recovery_s += time.monotonic() - start
        return prepared

    def search(self, watch: Watch) -> Floats:
        """Try every candidate by joblib, which can spread no more than that; returns the weights of the best."""
        import joblib

        tried = factors(self._job.params["candidates"])
        args = self._make_learner, self._lean, self._shares[0]

        def attempts() -> Any:
            with joblib.parallel_config("dask", client=self._session.client, workers=self._session.addresses):
                return joblib.Parallel(n_jobs=len(tried))(joblib.delayed(_attempt)(*args, factor) for factor in tried)

        def poll() -> None:
            self._session.check()
            watch.progress(0, None, 0)

        return select_best(run_with_polling(attempts, poll), self._job, watch)


def _attempt(make_learner: LearnerFactory, lean: Job, share: WorkerRows, factor: float) -> Any:
    """Train one candidate. Run by joblib on a worker."""
    x, y = load(share)
    job = replace(lean, data=replace(lean.data, x_train=x, y_train=np.asarray(y)))
    return train_candidate(make_learner, job, factor)


@dataclass(frozen=True)
class TaskFailure:
    """An error on a worker, as text: an exception would lose its traceback on the way."""

    traceback: str


class WorkerActor:
    """The state of one worker: its rows, its learner and its last weights.

    With `partitioned` the rows are its own; else it has all, and takes its slice of every batch. Of a sparse model it
    returns only the weights that have changed.
    """

    def __init__(
        self, rows: tuple[Any, Any], job: Job, make_learner: LearnerFactory, worker: int, partitioned: bool
    ) -> None:
        x, y = rows
        self._job = replace(job, data=replace(job.data, x_train=x, y_train=y))
        self._portion: BatchShare | LocalRows = BatchShare(job.order, worker, job.workers)
        if partitioned:
            self._portion = LocalRows(job.order, worker, len(y))
        self._learner = make_learner(self._job)
        self._weights = flatten(job.weights)

    def work(self, weights: Any, first: int, last: int) -> RoundResult | TaskFailure:
        """Make the steps from first to last, from these weights or from the last ones with an update."""
        try:
            if isinstance(weights, SparseUpdate):
                weights.apply(self._weights)
            else:
                self._weights = np.array(weights)
            done = make_steps(self._learner, self._job, self._portion, self._weights, first, last)
            sparse = self._job.model.sparse
            return replace(done, weights=SparseUpdate.between(self._weights, done.weights)) if sparse else done
        except Exception:
            return TaskFailure(traceback.format_exc())


@dataclass(frozen=True)
class WorkerRows:
    """The rows that one worker loads: for each file the first row, and the one after the last."""

    storage: Storage
    parts: Sequence[tuple[str, int, int]]


def store_rows(job: Job, partitioned: bool) -> list[WorkerRows]:
    """Write the rows to the storage unless they are there; returns what each worker loads: a part, or all.

    Parts are drawn at random, because the rows of a file may be in the order of their classes.
    """
    data, rows, name = job.data, len(job.data.y_train), rows_name(job.data)
    url = job.params["storage"] or str(job.folder / "rows")
    if partitioned:
        storage = Storage(url, "parquet", f"{name}-mixed-{job.order.seed}")
        if not storage.parts():
            mixed = np.random.default_rng(derive("parts", data.identity, job.order.seed)).permutation(rows)
            x = data.x_train if isinstance(data.x_train, Csr) else compact(data.x_train)
            storage.put(x[mixed], np.asarray(data.y_train)[mixed])
        shares = storage.shares(rows, job.workers)
    else:
        storage = Storage(url, "parquet", name)
        storage.put(data.x_train, data.y_train)
        shares = storage.shares(rows, 1) * job.workers
    if not job.params["storage"]:
        job.cluster.send_files([job.folder / "rows"])
    return [WorkerRows(storage, parts) for parts in shares]


def load(share: WorkerRows) -> tuple[Any, Any]:
    """Return the rows of a share and their classes. Run by Dask on the worker that trains on them."""
    xs, ys = [], []
    for part, first, last in share.parts:
        x, y = share.storage.read(part)
        xs.append(x[first:last])
        ys.append(y[first:last])
    if not isinstance(xs[0], Csr):
        return np.concatenate(xs), np.concatenate(ys)
    parts = [x.compact() for x in xs]
    offsets = np.cumsum([0, *(part.nonzeros for part in parts)])
    starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets, strict=False)]
    columns, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("columns", "values"))
    return Csr(np.concatenate([*starts, offsets[-1:]]), columns, values, parts[0].width), np.concatenate(ys)
