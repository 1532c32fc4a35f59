"""Snapshots: when one is due, and how it is written with little work, because training waits for it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Order
    from trainoff.models import Weights

BLOCK = 4096  # unit of direct I/O; the file is padded to it


class SnapshotBuffer:
    """A buffer for all weights as one vector, from which each snapshot is written.

    Direct I/O is used where the file system allows it: filling the page cache costs many times the CPU time of the
    writing itself, and the pages are not read before the trial has ended.
    """

    def __init__(self, parameters: int) -> None:
        import numpy as np

        self._pages = mmap.mmap(-1, -(-parameters * 4 // BLOCK) * BLOCK)
        self.flat: NDArray[np.float32] = np.frombuffer(self._pages, np.float32, parameters)
        self.flat[...] = 0  # touches the memory now, not at the first snapshot

    def fill(self, weights: Weights) -> None:
        """Copy the weights into the buffer."""
        import numpy as np

        size = sum(part.size for part in weights)
        if size != self.flat.size:
            raise ValueError(f"a snapshot of {size} weights; the network has {self.flat.size}")
        np.concatenate([part.ravel() for part in weights], out=self.flat, casting="same_kind")

    @property
    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        import numpy as np

        return bool(np.isfinite(self.flat.max()) and np.isfinite(self.flat.min()))

    def write(self, path: Path) -> None:
        """Write the buffer into a new file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for direct in (getattr(os, "O_DIRECT", 0), 0):
            try:
                with os.fdopen(os.open(path, flags | direct, 0o644), "wb", buffering=0) as file:
                    rest = memoryview(self._pages)
                    while rest:
                        rest = rest[file.write(rest) :]
                return
            except OSError:
                if not direct:  # the first attempt may fail for want of direct I/O
                    raise


CERTIFIED_STEPS = (1, 20)  # after these steps the weights are compared with the reference
MOST_SNAPSHOTS = 100  # of a training, for all engines alike


class SnapshotSchedule:
    """When snapshots are taken: after the certified steps, every `snapshot_every` samples, and at the end."""

    def __init__(self, order: Order, snapshot_every: int) -> None:
        self.order = order
        self._every = self._next = max(snapshot_every, order.rows * order.epochs // MOST_SNAPSHOTS, 1)

    def wanted(self, step: int, samples_seen: int) -> bool:
        """Return whether a snapshot is due."""
        return samples_seen >= self._next or step in CERTIFIED_STEPS or step >= self.order.steps

    def taken(self, samples_seen: int) -> None:
        """Record a snapshot and schedule the next one."""
        while self._next <= samples_seen:
            self._next += self._every
