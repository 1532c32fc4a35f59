"""How the rows reach Dask's workers: they lie as Parquet in a store, and every worker loads what it will learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainoff.data import Csr
from trainoff.engines.contract import Job
from trainoff.engines.shared.shipping import compact
from trainoff.engines.shared.storage import Storage
from trainoff.study.seeds import derive

Piece = tuple[str, int, int]  # a file, and from which row to which in it


@dataclass(frozen=True)
class Share:
    """The rows that one worker loads."""

    storage: Storage
    pieces: Sequence[Piece]


def lay_out(job: Job, apart: bool) -> list[Share]:
    """See that the rows are where the workers find them; for every worker which it loads: a part each, or all."""
    shares = _laid_out(job, apart)
    if not job.params["storage"]:
        job.cluster.bring([job.folder / "rows"])
    return shares


def _laid_out(job: Job, apart: bool) -> list[Share]:
    """See that the rows are in the store.

    Parts are drawn at random, because the rows of a file may be in the order of their classes.
    """
    data, rows = job.data, len(job.data.y_train)
    name = f"{data.name.replace('/', '_')}-{data.identity[:12]}-{rows}"
    url = job.params["storage"] or str(job.folder / "rows")
    if not apart:
        storage = Storage(url, "parquet", name)
        storage.put(data.x_train, data.y_train)
        return [Share(storage, storage.shares(rows, 1)[0])] * job.workers
    storage = Storage(url, "parquet", f"{name}-mixed-{job.order.seed}")
    if not storage.parts():
        mixed = np.random.default_rng(derive("parts", data.identity, job.order.seed)).permutation(rows)
        small = data.x_train if isinstance(data.x_train, Csr) else compact(data.x_train)
        storage.put(small[mixed], np.asarray(data.y_train)[mixed])
    return [Share(storage, pieces) for pieces in storage.shares(rows, job.workers)]


def load(share: Share) -> tuple[Any, Any]:
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
