"""A job on its way to the workers of a cluster: without what only the driver has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainoff.engines.compact import compact, expand
from trainoff.engines.contract import Job

WEIGHT_BYTES = 4  # a float32


def ring_bytes(job: Job, workers: int) -> int:
    """What an agreement must move: around a ring every worker but one passes each number on, to sum and to tell it."""
    return int(2 * (workers - 1) * WEIGHT_BYTES * job.model.parameters)


def with_rows(job: Job) -> Job:
    """The job with the training rows in memory, as few bytes as they can be, and no test rows; see `arrived`."""
    data = job.data
    return _sent(
        job,
        x_train=in_memory(data.x_train) if data.sparse else compact(data.x_train),
        y_train=np.array(data.y_train),
        x_test=in_memory(data.x_test[:0]),
        y_test=np.array(data.y_test[:0]),
    )


def arrived(job: Job) -> Job:
    """The job on a worker, with its rows as they were."""
    data = job.data
    return job if data.sparse else replace(job, data=replace(data, x_train=expand(np.asarray(data.x_train))))


def without_rows(job: Job) -> Job:
    """The job for processes that find the rows where they run."""
    return _sent(job, **dict.fromkeys(("x_train", "y_train", "x_test", "y_test")))


def _sent(job: Job, **rows: Any) -> Job:
    nowhere: Any = None  # workers have no cluster
    return replace(job, data=replace(job.data, **rows), cluster=nowhere, folder=Path())


def in_memory(x: Any) -> Any:
    """The rows without the file they are mapped from."""
    if hasattr(x, "compact"):
        part = x.compact()
        return replace(part, **{name: np.array(getattr(part, name)) for name in ("starts", "columns", "values")})
    return np.array(x)
