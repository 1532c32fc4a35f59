"""When snapshots are wanted: the same moments for every engine, wherever its clock ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainoff.data import Order

CERTIFIED_STEPS = (1, 20)  # after these steps the weights are held against the reference
MOST_SNAPSHOTS = 100  # longer trainings are looked at less often, all engines alike


@dataclass
class Pace:
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
