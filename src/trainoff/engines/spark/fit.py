"""Which executors a trial has: how many, and the cores and heap of each."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Protocol

from trainoff.clusters.spark import Executors, allocate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HEAP_SHARE = 0.5  # of a worker's memory; the rest is for its Python, for Spark's worker and outside the heap
HEAP_GB, LEAST_HEAP_GB = 2.0, 0.5


class Asks(Protocol):
    """What decides about the executors; a trial and a job both have it."""

    @property
    def workers(self) -> int: ...
    @property
    def cores(self) -> float: ...
    @property
    def memory_gb(self) -> float | None: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


def fit(asks: Asks) -> Executors:
    """One executor per worker, with all its cores; or, given `executor_cores`, as many as the workers' nodes hold."""
    cores, memory = ceil(asks.cores), asks.memory_gb
    if executor_cores := asks.params.get("executor_cores"):
        return allocate(asks.workers, cores, memory or 0.0, executor_cores)
    return Executors(asks.workers, cores, max(LEAST_HEAP_GB, memory * HEAP_SHARE) if memory else HEAP_GB)
