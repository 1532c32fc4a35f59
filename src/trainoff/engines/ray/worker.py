"""What Ray Train runs on every worker."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any


def train(given: Mapping[str, Any]) -> None:
    """Fetch the rows from Ray's store and learn from them, to the end; Ray Train has formed the process group."""
    import ray
    import torch

    from trainoff.engines.shared.shipping import arrived
    from trainoff.engines.torch.ddp_worker import owning_up, work

    assignment = given["assignment"]
    (sent,) = given["sent"]
    with owning_up(assignment):
        torch.set_num_threads(ceil(assignment.job.cores))
        work(assignment, lambda job: arrived(ray.get(sent)))
