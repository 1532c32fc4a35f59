"""When each worker was at work: its first tasks one by one, and the sums of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trainoff.engines.contract import Watch
from trainoff.engines.shared.local_sgd.worker import Work

MOST_TASKS = 100  # of every worker; the rest is only added up


class Timeline:
    """Tells the watch what the workers did, since training began at some time."""

    def __init__(self, watch: Watch, start: float) -> None:
        self._watch, self._start = watch, start
        self._busy: dict[str, float] = defaultdict(float)
        self._rounds, self._gc_s = 0, 0.0

    def add(self, done: Sequence[Work], sent: float, back: float) -> None:
        """One round is over, which was sent out and came back at these times of the driver's clock."""
        self._rounds += 1
        for number, work in enumerate(done):
            self._busy[f"worker-{number}"] += work.ended - work.began
            self._gc_s += work.gc_s
            if self._rounds <= MOST_TASKS:
                ahead = skew(work, sent, back) + self._start
                self._watch.task(f"worker-{number}", work.began - ahead, work.ended - ahead)

    def tell(self) -> None:
        """Training is over."""
        self._watch.breakdown("computing_s", self._busy)
        self._watch.count("python_gc_s", self._gc_s)


def skew(work: Work, sent: float, back: float) -> float:
    """How far a worker's clock is ahead of the driver's: not at all, if its work lies between sending and coming back.

    Else the work is taken to lie in the middle.
    """
    if sent <= work.began and work.ended <= back:
        return 0.0
    return (work.began + work.ended - sent - back) / 2
