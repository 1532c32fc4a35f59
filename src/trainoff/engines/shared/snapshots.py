"""Snapshots on their way to files: as little work as possible, because training waits meanwhile."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainoff.data import Order
    from trainoff.models import Weights


BLOCK = 4096  # what direct writing is done in; a file's end is padded to it


class SnapshotBuffer:
    """Room for all weights as one vector, made once, from which each snapshot is written.

    Written past the kernel's cache where the file system allows it: filling the cache with pages that nobody reads
    before the trial has ended costs many times the CPU time of the writing itself.
    """

    def __init__(self, parameters: int) -> None:
        import numpy as np

        self._pages = mmap.mmap(-1, -(-parameters * 4 // BLOCK) * BLOCK)
        self.flat: NDArray[np.float32] = np.frombuffer(self._pages, np.float32, parameters)
        self.flat[...] = 0  # touch the memory now and not at the first snapshot

    def fill(self, weights: Weights) -> None:
        """Copy the weights in, one after the other."""
        import numpy as np

        size = sum(part.size for part in weights)
        if size != self.flat.size:
            raise ValueError(f"a snapshot of {size} weights; the network has {self.flat.size}")
        np.concatenate([part.ravel() for part in weights], out=self.flat, casting="same_kind")

    @property
    def finite(self) -> bool:
        """Whether all weights are numbers."""
        import numpy as np

        return bool(np.isfinite(self.flat.max()) and np.isfinite(self.flat.min()))

    def write(self, path: Path) -> None:
        """Put what was filled in into a new file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for direct in (getattr(os, "O_DIRECT", 0), 0):
            try:
                self._write(os.open(path, flags | direct, 0o644))
                return
            except OSError:
                if not direct:  # a file system without direct writing gets a second chance, a full one does not
                    raise

    def _write(self, file: int) -> None:
        try:
            left = memoryview(self._pages)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)


CERTIFIED_STEPS = (1, 20)  # after these steps the weights are held against the reference
MOST_SNAPSHOTS = 100  # longer trainings are looked at less often, all engines alike


@dataclass
class SnapshotSchedule:
    """Says when a snapshot is wanted: at the certified steps, every so many samples, and at the end."""

    order: Order
    snapshot_every: int
    _every: int = field(init=False)
    _next: int = field(init=False)

    def __post_init__(self) -> None:
        self._every = max(self.snapshot_every, self.order.rows * self.order.epochs // MOST_SNAPSHOTS, 1)
        self._next = self._every

    def wanted(self, step: int, samples_seen: int) -> bool:
        return samples_seen >= self._next or step in CERTIFIED_STEPS or step >= self.order.steps

    def taken(self, samples_seen: int) -> None:
        """A snapshot was taken; the next one is wanted later."""
        while self._next <= samples_seen:
            self._next += self._every
