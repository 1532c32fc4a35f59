"""What workers that learn together are given by the driver, which need not know torch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainoff.engines.contract import Job
    from trainoff.engines.shared.control_channel import Number
    from trainoff.engines.shared.recovery import Keeper
    from trainoff.engines.shared.snapshots import Pace


@dataclass(frozen=True)
class Assignment:
    """The job, how to reach the driver, when it wants snapshots, and where checkpoints are kept, if they are."""

    job: Job
    number: Number
    pace: Pace
    keeper: Keeper | None = None
