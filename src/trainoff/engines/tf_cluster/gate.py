"""Who works on which batch in asynchronous training, and who must wait: for a snapshot, or for the late."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from trainoff.data import Order


class Deal:
    """Batches for every worker: first those of its own part of the order, then the others'."""

    def __init__(self, steps: int, workers: int, done: Collection[int] = ()) -> None:
        self._left = [
            deque(step for step in range(number + 1, steps + 1, workers) if step not in done)
            for number in range(workers)
        ]

    def next(self, worker: int) -> int | None:
        """The next batch for a worker; None if none is left."""
        part = self._left[worker] or max(self._left, key=len)
        return part.popleft() if part else None

    def put_back(self, worker: int, batch: int) -> None:
        self._left[worker].appendleft(batch)


@dataclass
class Flight:
    """A batch on its way: since when, and how many others may be applied before it."""

    batch: int
    since: float
    overtaken: int


class Gate:
    """Lets a worker go on with its next batch, or wait.

    `pause_after(updates, samples)` says after which updates all must wait until `go_on`. No gradient is applied after
    more than `most_stale` others that its weights had not seen.
    """

    def __init__(
        self,
        order: Order,
        workers: int,
        pause_after: Callable[[int, int], bool],
        most_stale: int | None = None,
        done: Collection[int] = (),
    ) -> None:
        self._order, self._pause_after, self._most_stale = order, pause_after, most_stale
        self._deal = Deal(order.steps, workers, done)
        self.applied = set(done)
        self.samples = sum(map(self._rows, done))
        self.started = len(self.applied)
        self.flying: dict[int, Flight] = {}
        self.lost: dict[int, float] = {}  # the workers that were given up, and for how long they had been silent
        self.redone = 0
        self.paused = False
        self._change = threading.Condition()

    @property
    def updates(self) -> int:
        return len(self.applied)

    @property
    def over(self) -> bool:
        return self.updates == self._order.steps

    def take(self, worker: int) -> tuple[int, int] | None:
        """The next batch and the number of its update; waits for its turn, None if there is nothing more to do."""
        with self._change:
            while not self.over and worker not in self.lost:
                if self._may_go() and (batch := self._deal.next(worker)):
                    for flight in self.flying.values():
                        flight.overtaken += 1
                    self.flying[worker] = Flight(batch, time.monotonic(), len(self.flying))
                    self.started += 1
                    return batch, min(self.started, self._order.steps)
                self._change.wait()
        return None

    def _may_go(self) -> bool:
        if self.paused:
            return False
        if self._most_stale is None:
            return True
        others = self.flying.values()
        return len(others) <= self._most_stale and all(flight.overtaken < self._most_stale for flight in others)

    def done(self, worker: int) -> bool:
        """A worker's batch has been applied; False if the worker had been given up meanwhile."""
        with self._change:
            flight = self.flying.pop(worker, None)
            if flight is None:
                return False
            self.applied.add(flight.batch)
            self.samples += self._rows(flight.batch)
            self.paused = self.paused or self._pause_after(self.updates, self.samples)
            self._change.notify_all()
            return True

    def lose(self, worker: int) -> None:
        """Give a worker up; another one makes its batch again."""
        with self._change:
            if flight := self.flying.pop(worker, None):
                self._deal.put_back(worker, flight.batch)
                self.redone += 1
            self.lost.setdefault(worker, time.monotonic() - flight.since if flight else 0.0)
            self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all stand still, after the last batch or for a pause; False if that takes longer."""
        with self._change:
            return self._change.wait_for(lambda: (self.over or self.paused) and not self.flying, seconds)

    def _rows(self, batch: int) -> int:
        return self._order.samples_after(batch) - self._order.samples_after(batch - 1)

    def counted(self) -> tuple[int, int] | None:
        """How many updates and samples there have been; None on the way to a pause, when the count still changes."""
        with self._change:
            return None if self.paused and self.flying else (self.updates, self.samples)

    def go_on(self) -> None:
        """The end of a pause."""
        with self._change:
            self.paused = False
            self._change.notify_all()
