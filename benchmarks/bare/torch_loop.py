"""A minimal loop in torch: no modules, no optimiser class, channels last throughout, and the fused update."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bare import MOMENTUM, RATE


def make(model: Any, weights: Any, x: Any, y: Any, batch: int, threads: int) -> Callable[[Any], None]:
    torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only and only read
        images, labels = torch.from_numpy(np.asarray(x)), torch.from_numpy(np.asarray(y))
    parts = [torch.tensor(np.moveaxis(part, -1, 0).copy()).requires_grad_() for part in weights]
    flat = [part.detach().view(-1) for part in parts]
    velocity = [torch.zeros_like(part) for part in flat]
    buffer = torch.empty(batch, images.shape[1])
    scores = cnn if model.kind == "cnn" else mlp

    def loop(order: Any) -> None:
        rows = torch.from_numpy(order)
        for start in range(0, len(order), batch):
            chosen = rows[start : start + batch]
            torch.index_select(images, 0, chosen, out=buffer)
            loss = F.cross_entropy(scores(buffer, parts), labels[chosen])
            gradient = [part.reshape(-1) for part in torch.autograd.grad(loss, parts)]
            torch._fused_sgd_(
                flat,
                gradient,
                velocity,
                weight_decay=0.0,
                momentum=MOMENTUM,
                lr=RATE,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            loss.item()

    return loop


def mlp(x: Any, parts: Any) -> Any:
    w1, b1, w2, b2 = parts
    return F.linear(torch.relu_(F.linear(x, w1, b1)), w2, b2)


def cnn(x: Any, parts: Any) -> Any:
    k1, c1, k2, c2, w1, b1, w2, b2 = parts
    x = x.view(-1, 28, 28, 1).permute(0, 3, 1, 2)
    x = F.max_pool2d(torch.relu_(F.conv2d(x, k1.permute(0, 3, 1, 2), c1)), 2)
    x = F.max_pool2d(torch.relu_(F.conv2d(x, k2.permute(0, 3, 1, 2), c2)), 2)
    return F.linear(torch.relu_(F.linear(x.permute(0, 2, 3, 1).flatten(1), w1, b1)), w2, b2)
