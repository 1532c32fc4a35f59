"""Schedules: how the learning rate changes over a training."""

from __future__ import annotations

import numpy as np
import pytest

from trainoff.errors import TrainoffError
from trainoff.models import rates


def test_constant_is_the_learning_rate_at_every_step() -> None:
    assert rates("constant", 0.1, 3).tolist() == [0.1, 0.1, 0.1]


def test_one_cycle_rises_in_a_straight_line_over_the_first_quarter() -> None:
    first = rates("one-cycle", 0.4, 1000)[:250]
    assert first[0] == pytest.approx(0.4 / 25, rel=0.1)
    assert first[-1] == pytest.approx(0.4, rel=0.01)
    assert np.ptp(np.diff(first)) < 1e-12


def test_one_cycle_falls_to_a_thousandth() -> None:
    last = rates("one-cycle", 0.4, 1000)[250:]
    assert last[0] == pytest.approx(0.4, rel=0.01)
    assert (np.diff(last) < 0).all()
    assert last[-1] == pytest.approx(0.4 / 1000, rel=0.1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 20])
def test_one_cycle_works_for_the_shortest_trainings(steps: int) -> None:
    rate = rates("one-cycle", 0.4, steps)
    assert rate.shape == (steps,)
    assert rate.dtype == np.float64
    assert (rate > 0).all()
    assert 0.2 < rate.max() <= 0.4


def test_an_unknown_schedule_is_an_error() -> None:
    with pytest.raises(TrainoffError, match="`cosine` is not a schedule; use one of constant, one-cycle"):
        rates("cosine", 0.1, 10)
