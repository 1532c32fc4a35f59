"""How workers agree on the gradient of a batch of which each has a share: by torch's DistributedDataParallel."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trainoff.engines.torch.network import Network
from trainoff.engines.torch.rows import Batch


class Shared(torch.nn.Module):
    """The loss of a worker's share as a module, which is what torch can distribute.

    The loss travels as a gradient among the others: it is the slope along a parameter that nobody changes.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._loss = network.loss
        self.weights = torch.nn.ParameterList(network.parameters)
        self.echo = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor, part: float) -> Tensor:
        loss = self._loss(Batch(x, y)) * part
        return loss + self.echo * loss.detach()


class Agreement:
    """The gradient of the whole batch: the workers' gradients, each weighted by its part of the rows.

    `took` is how long the last agreeing took here, after this worker's own gradient was known.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._shared = network, Shared(network)
        self._spread = DistributedDataParallel(self._shared, gradient_as_bucket_view=True)
        self._workers = dist.get_world_size()
        self.part = 1.0 / self._workers
        self._known = self.took = 0.0
        for first in network.parameters[:2]:  # their gradients are the last to be known
            hook = first.register_post_accumulate_grad_hook
            hook(self._look_at_the_clock)  # type: ignore[no-untyped-call]  # torch has no types here

    def _look_at_the_clock(self, _: Tensor) -> None:
        self._known = time.monotonic()

    def __call__(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        self._spread.zero_grad()
        # The average over the workers is taken; it should be the sum.
        self._spread(batch.x, batch.y, self.part * self._workers).backward()
        self.took = time.monotonic() - self._known
        return grad_of(self._shared.echo), [grad_of(part).view(-1) for part in self._network.parameters]


def grad_of(parameter: Tensor) -> Tensor:
    """The gradient that was found last."""
    assert parameter.grad is not None
    return parameter.grad
