"""What a training needs to go on after a loss: its state every so many updates, in one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainoff.engines.contract import Knob

if TYPE_CHECKING:
    from trainoff.engines.shared.control_channel import Leader
    from trainoff.models import Weights

CHECKPOINT = Knob(
    int, 500, "updates between two checkpoints, from which training goes on after a loss; 0: none", minimum=0
)


def settle_checkpoints(values: dict[str, Any]) -> dict[str, Any]:
    """No checkpoints on hosts: who begins again on one would not find what another has written on its own disk."""
    return {**values, "checkpoint_every": 0} if values["kind"] == "hosts" else values


@dataclass(frozen=True)
class Checkpoint:
    """The state after some updates: all that a step changes, and which batches have been seen."""

    state: list[NDArray[Any]]
    done: frozenset[int] = field(default_factory=frozenset)


class Keeper:
    """Writes checkpoints: the new one replaces the old one only when it is whole."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self._every = path, every
        self._saved = 0

    def due(self, updates: int) -> bool:
        """Whether so many updates have been made since the last checkpoint that another one is wanted."""
        return bool(self._every) and updates - self._saved >= self._every

    def save(self, state: Sequence[Any], done: Collection[int]) -> None:
        """Fetch the state and write it."""
        draft = self.path.with_suffix(".draft")
        with draft.open("wb") as file:
            arrays = {f"state{number}": part.numpy() for number, part in enumerate(state)}
            np.savez(file, done=np.array(sorted(done), np.int64), **arrays)
        draft.replace(self.path)
        self.saved(len(done))

    def saved(self, updates: int) -> None:
        """There is a checkpoint after so many updates, whoever has written it."""
        self._saved = updates

    def step_done(
        self, leader: Leader, step: int, loss: float, weights: Callable[[], Weights], state: Sequence[Any]
    ) -> None:
        """Tell that all steps up to this one are done, and save the state if it is time to."""
        due = self.due(step)
        if due:
            leader.hurry()  # so that the driver knows of every step that a checkpoint holds
        leader.progress(step, loss, weights)
        if due and step < leader.pace.order.steps:
            self.save(state, range(1, step + 1))

    def load(self) -> Checkpoint | None:
        """The last checkpoint, if there is one."""
        if not self.path.exists():
            return None
        with np.load(self.path) as stored:
            state = [stored[f"state{number}"] for number in range(len(stored.files) - 1)]
            done = frozenset(stored["done"].tolist())
        self.saved(len(done))
        return Checkpoint(state, done)
