"""The lab on the side of the machine: its control groups, which outlive the processes in them and must be removed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from trainoff.clusters.lab.cgroups import find_groups
from trainoff.clusters.lab.cluster import Plan
from trainoff.clusters.lab.register import Entry, announce, forget, kill_all, new_name, sweep
from trainoff.errors import TrainoffError
from trainoff.study.nodes import NodeSpec

_numbers = itertools.count()


class Ground:
    """The control groups of one lab, from their making to their removal. Leftovers of the dead are removed first."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self._groups = find_groups()
        sweep(self._groups)
        self.plan = Plan(new_name(next(_numbers)), self._groups.version, str(self._groups.place), specs)
        try:
            self._make(specs)
        except OSError as error:
            self.close()
            raise TrainoffError(
                f"the control groups of a lab cannot be made ({error}); see: trainoff doctor"
            ) from error

    def _make(self, specs: Sequence[NodeSpec]) -> None:
        for number, spec in enumerate(specs):
            group = self._groups.make(self.plan.name, f"node-{number}")
            if spec.memory_bytes:
                group.set_memory(spec.memory_bytes)

    def announce(self, about: str, keeper: int, folder: Path) -> None:
        """Let others find the lab, once its network has been made by the keeper and written down in the folder."""
        announce(Entry(Plan.read(folder), about, keeper, str(folder)))

    def close(self) -> None:
        """Remove the groups, when their processes have been killed; what will not go yet, the next lab removes."""
        forget(self.plan.name)
        with contextlib.suppress(OSError):
            kill_all(self._groups, self.plan.name)
            self._groups.remove(self.plan.name)
