"""The pool of a training by rounds on Dask: an actor on every worker, called directly and not through the scheduler."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.delayed import delayed

from trainoff.data import Csr
from trainoff.engines.contract import Job, Watch, WorkerFailed
from trainoff.engines.dask.session import DYING_S, DaskConnection, WorkerLost
from trainoff.engines.shared.local_sgd import (
    BatchShare,
    Floats,
    LearnerFactory,
    LocalRows,
    RateCandidate,
    RoundResult,
    SparseUpdate,
    factors,
    make_steps,
    select_best,
    train_candidate,
)
from trainoff.engines.shared.recovery import with_heartbeat
from trainoff.engines.shared.shipping import compact, without_rows
from trainoff.engines.shared.storage import Storage
from trainoff.errors import TrainoffError
from trainoff.models import flatten
from trainoff.study.study import derive

POLL_S = 0.25
NOT_YET = (TimeoutError, UnboundLocalError)  # the latter is Dask's own, of an answer that is cancelled


class DaskWorkerPool:
    """One desk per worker. With `apart`, every worker has rows of its own; else each has all."""

    def __init__(self, session: DaskConnection, job: Job, make_learner: LearnerFactory, *, apart: bool) -> None:
        self._session, self._job, self._make_learner, self._apart = session, job, make_learner, apart
        self._lean = without_rows(job)
        self.workers = job.workers
        self.sparse = job.model.kind == "logreg"  # few of many weights change
        self._sent: Floats | None = None  # what all desks have; None: somebody may have nothing
        self._mended = False  # whether a desk was set up anew in this round
        self._round = 0  # samples that a worker sees in this round

    def lay_out(self) -> None:
        """Put the rows where the workers can read them."""
        self._shares = lay_out(self._job, self._apart)

    def ship(self) -> None:
        """Let every worker load its rows and prepare its desk."""
        self._rows: list[Any] = [None] * self.workers
        self._desks: list[Any] = [None] * self.workers
        self._prepare(range(self.workers))

    def _prepare(self, numbers: Iterable[int]) -> set[int]:
        """Give some workers their rows and a desk, and those that must be replaced meanwhile; returns which."""
        without = list(numbers)
        prepared = set(without)
        for number in without:
            self._rows[number] = self._load(number)
        while without:
            try:
                self._desks[without[0]] = self._sit_down(without[0])
                without.pop(0)
            except WorkerLost as lost:
                self._session.replace(lost.number)
                self._rows[lost.number] = self._load(lost.number)
                without += [] if lost.number in without else [lost.number]
                prepared.add(lost.number)
        return prepared

    def _load(self, number: int) -> Any:
        """The rows of a worker as a collection of Dask's, computed where they will be learnt from."""
        part = delayed(load, pure=False)(self._shares[number])
        return self._session.client.compute(part, workers=[self._session.addresses[number]])

    def _sit_down(self, number: int) -> Any:
        """A new desk; Lost if a worker is gone meanwhile, for whose part Dask would wait for ever."""
        given = (self._rows[number], self._lean, self._make_learner, number)
        ways = {"apart": self._apart, "sparse": self.sparse}
        where = [self._session.addresses[number]]
        desk = self._session.client.submit(DaskWorker, *given, **ways, actor=True, workers=where, pure=False)
        while True:
            try:
                return desk.result(timeout=POLL_S)
            except NOT_YET:
                self._session.check()
            except FileNotFoundError as error:
                raise TrainoffError(
                    f"the workers cannot read the rows at {self._shares[number].storage.url}; name with `storage` a "
                    "place that they can reach"
                ) from error

    def round(self, weights: Floats, first: int, last: int) -> list[RoundResult]:
        """Everybody makes the steps from first to last."""
        seen = self._job.order.samples_after
        self._round = (seen(last) - seen(first - 1)) // self.workers
        told = SparseUpdate.between(self._sent, weights) if self.sparse and self._sent is not None else weights
        self._mended = False
        found = self._ask(lambda desk: desk.work(told, first, last), lambda desk: desk.work(weights, first, last))
        self._sent = None if self._mended else weights  # a new desk whose answer was there already was told nothing
        for number, work in enumerate(found):
            if isinstance(work, TaskFailure):
                raise WorkerFailed(f"worker-{number}", work.said)
        return found

    def rest(self) -> None:
        """A round in which nothing travels and nobody works: what it takes is Dask's own."""
        self._ask(lambda desk: desk.rest(), lambda desk: desk.rest())

    def _ask(self, ask: Callable[[Any], Any], ask_anew: Callable[[Any], Any]) -> list[Any]:
        """What every desk answers; a desk that is lost is set up again, and asked as one that knows nothing."""
        calls = [self._call(ask, number) for number in range(self.workers)]
        for number in range(self.workers):
            while not isinstance(calls[number], WorkerAnswer):
                try:
                    calls[number] = WorkerAnswer(self._hear(number, calls[number]))
                except WorkerLost as lost:
                    for fresh in self._mend(lost.number):
                        if not isinstance(calls[fresh], WorkerAnswer):
                            calls[fresh] = self._call(ask_anew, fresh)
        return [call.value for call in calls]

    def _call(self, ask: Callable[[Any], Any], number: int) -> Any:
        try:
            return ask(self._desks[number])
        except RuntimeError:  # Dask knows already that the desk is gone
            return None

    def _hear(self, number: int, call: Any) -> Any:
        """The answer of a desk, as soon as it comes; Lost if a worker is gone meanwhile."""
        while call is not None:
            try:
                return call.result(timeout=POLL_S)
            except NOT_YET:
                self._session.check()
            except (OSError, RuntimeError, KeyError):
                break
        self._session.check(DYING_S)
        raise WorkerLost(number)

    def _mend(self, number: int) -> set[int]:
        """Put somebody in the place of a worker that is gone, with its rows and a desk; returns who is new."""
        start, self._mended = time.monotonic(), True
        self._session.replace(number, self._round)
        prepared = self._prepare([number])
        self._session.recovery_s += time.monotonic() - start
        return prepared

    def search(self, watch: Watch) -> Floats:
        """Try every candidate by joblib, which is all that joblib can spread; returns the weights of the best."""
        import joblib

        tried, lean, make_learner, share = (
            factors(self._job.params["candidates"]),
            self._lean,
            self._make_learner,
            self._shares[0],
        )

        def attempts() -> list[RateCandidate]:
            there = {"client": self._session.client, "workers": self._session.addresses}
            with joblib.parallel_config("dask", **there):
                every = (joblib.delayed(_attempt)(make_learner, lean, share, factor) for factor in tried)
                found: list[RateCandidate] = joblib.Parallel(n_jobs=len(tried))(every)
                return found

        def beat() -> None:
            self._session.check()
            watch.progress(0, None, 0)

        return select_best(with_heartbeat(attempts, beat), self._job, watch)


class WorkerAnswer:
    """What a desk has answered."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _attempt(make_learner: LearnerFactory, lean: Job, share: WorkerRows, factor: float) -> Any:
    """One candidate, trained where joblib's task runs."""
    from dataclasses import replace

    x, y = load(share)
    return train_candidate(
        make_learner, replace(lean, data=replace(lean.data, x_train=x, y_train=np.asarray(y))), factor
    )


@dataclass(frozen=True)
class TaskFailure:
    """What went wrong on a worker, in its own words; an exception would lose its traceback on the way."""

    said: str


class DaskWorker:
    """One worker's place. With `apart`, its rows are its own; else it has all, and takes its slice of every batch.

    With `sparse`, it tells only which weights have changed.
    """

    def __init__(
        self, rows: tuple[Any, Any], job: Job, make_learner: LearnerFactory, worker: int, *, apart: bool, sparse: bool
    ) -> None:
        x, y = rows
        self._sparse = sparse
        self._job = replace(job, data=replace(job.data, x_train=x, y_train=y))
        self._portion = LocalRows(job.order, worker, len(y)) if apart else BatchShare(job.order, worker, job.workers)
        self._learner = make_learner(self._job)
        self._weights = flatten(job.weights)

    def work(self, weights: Any, first: int, last: int) -> RoundResult | TaskFailure:
        """Go on from these weights, or from the last ones with a change, with the steps from first to last."""
        try:
            if isinstance(weights, SparseUpdate):
                weights.apply(self._weights)
            else:
                self._weights = np.array(weights)
            done = make_steps(self._learner, self._job, self._portion, self._weights, first, last)
            return replace(done, weights=SparseUpdate.between(self._weights, done.weights)) if self._sparse else done
        except Exception:
            return TaskFailure(traceback.format_exc())

    def rest(self) -> None:
        """Nothing, to see what asking takes."""


Piece = tuple[str, int, int]  # a file, and from which row to which in it


@dataclass(frozen=True)
class WorkerRows:
    """The rows that one worker loads."""

    storage: Storage
    pieces: Sequence[Piece]


def lay_out(job: Job, apart: bool) -> list[WorkerRows]:
    """See that the rows are where the workers find them; for every worker which it loads: a part each, or all."""
    shares = _laid_out(job, apart)
    if not job.params["storage"]:
        job.cluster.send_files([job.folder / "rows"])
    return shares


def _laid_out(job: Job, apart: bool) -> list[WorkerRows]:
    """See that the rows are in the store.

    Parts are drawn at random, because the rows of a file may be in the order of their classes.
    """
    data, rows = job.data, len(job.data.y_train)
    name = f"{data.name.replace('/', '_')}-{data.identity[:12]}-{rows}"
    url = job.params["storage"] or str(job.folder / "rows")
    if not apart:
        storage = Storage(url, "parquet", name)
        storage.put(data.x_train, data.y_train)
        return [WorkerRows(storage, storage.shares(rows, 1)[0])] * job.workers
    storage = Storage(url, "parquet", f"{name}-mixed-{job.order.seed}")
    if not storage.parts():
        mixed = np.random.default_rng(derive("parts", data.identity, job.order.seed)).permutation(rows)
        small = data.x_train if isinstance(data.x_train, Csr) else compact(data.x_train)
        storage.put(small[mixed], np.asarray(data.y_train)[mixed])
    return [WorkerRows(storage, pieces) for pieces in storage.shares(rows, job.workers)]


def load(share: WorkerRows) -> tuple[Any, Any]:
    """The rows of a share and their classes. Run by Dask on the worker that will learn from them."""
    found = [_piece(share.storage, *piece) for piece in share.pieces]
    y = np.concatenate([labels for _, labels in found])
    if isinstance(found[0][0], Csr):
        return _stacked([rows for rows, _ in found]), y
    return np.concatenate([rows for rows, _ in found]), y


def _piece(storage: Storage, part: str, first: int, last: int) -> tuple[Any, Any]:
    x, y = storage.read(part)
    return x[first:last], y[first:last]


def _stacked(parts: Sequence[Csr]) -> Csr:
    """Sparse rows of several files as one."""
    parts = [part.compact() for part in parts]
    offsets = np.cumsum([0, *(part.nonzeros for part in parts)])
    starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets, strict=False)]
    columns, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("columns", "values"))
    return Csr(np.concatenate([*starts, offsets[-1:]]), columns, values, parts[0].width)
