"""Learning-rate schedules: how large each step of a training is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainoff.errors import TrainoffError

SCHEDULES = ("constant", "one-cycle")

RISE = 0.25  # the part of the training in which one-cycle climbs to the learning rate
START = 1 / 25  # where one-cycle begins, as a part of the learning rate
END = 1 / 1000  # and where it ends


def rates(schedule: str, learning_rate: float, steps: int) -> NDArray[np.float64]:
    """The learning rate of each step; `rates(...)[step - 1]` belongs to `step`."""
    if schedule == "constant":
        return np.full(steps, float(learning_rate))
    if schedule == "one-cycle":
        return learning_rate * _one_cycle(steps)
    raise TrainoffError(f"`{schedule}` is not a schedule; use one of {', '.join(SCHEDULES)}")


def _one_cycle(steps: int) -> NDArray[np.float64]:
    """A straight rise, then half a cosine down, as parts of the learning rate.

    Each step takes the rate at the middle of its share of the training, so that one or two steps need
    no rule of their own.
    """
    done = (np.arange(steps) + 0.5) / steps
    rise = START + (1 - START) * done / RISE
    fall = END + (1 - END) * (1 + np.cos(np.pi * (done - RISE) / (1 - RISE))) / 2
    return np.where(done < RISE, rise, fall)
