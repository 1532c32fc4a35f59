"""A watch for tests: it keeps what an engine says in lists, and asks for steps 1, 20 and the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainoff.models import Weights


@dataclass
class QuietWatch:
    """Remembers phases, losses and snapshots; `stop_at` ends the training after that step."""

    steps: int  # of the whole training
    stop_at: int | None = None
    should_stop: bool = False
    phases: list[str] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    snapshots: list[tuple[int, int, Weights]] = field(default_factory=list)  # step, samples seen, weights
    counts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield

    def progress(self, step: int, loss: float | None = None, samples_seen: int | None = None) -> None:
        assert step == len(self.losses) + 1, "every step is reported once, in order"
        self.losses.append(loss)
        self.should_stop = self.stop_at is not None and step >= self.stop_at

    def due(self, settle: Callable[[], object] | None = None) -> bool:
        wanted = self.should_stop or len(self.losses) in (1, 20, self.steps)
        if wanted and settle:
            settle()
        return wanted

    def snapshot(self, samples_seen: int, weights: Weights) -> None:
        weights = [part.copy() for part in weights]  # as the real watch does
        self.snapshots.append((len(self.losses), samples_seen, weights))

    def count(self, name: str, value: float) -> None:
        self.counts[name] = value
