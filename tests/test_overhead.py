"""The decision of benchmarks/overhead.py from measured ratios."""

import importlib.util
import sys
from pathlib import Path

import pytest

STEADY = [0.998, 1.002, 0.999, 1.001, 1.0, 1.0, 0.997, 1.003]


@pytest.fixture(scope="module")
def overhead():
    path = Path(__file__).parents[1] / "benchmarks" / "overhead.py"
    spec = importlib.util.spec_from_file_location("overhead_benchmark", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def cost(ratio, noise=1.0):
    return [ratio + noise * (each - 1) for each in STEADY]


def test_it_decides_if_the_controls_and_both_orders_agree(overhead, capsys):
    assert overhead.decide("train time", cost(1.005), STEADY, 1.02) == overhead.OK
    assert capsys.readouterr().out.endswith("at most 1.02: ok\n")
    assert overhead.decide("train time", cost(1.04), STEADY, 1.02) == overhead.TOO_MUCH
    assert overhead.decide("sampler", [0.006, 0.007] * 4, (), 0.01) == overhead.OK
    assert overhead.decide("sampler", [0.0115, 0.0125] * 4, (), 0.01) == overhead.TOO_MUCH


@pytest.mark.parametrize(
    ("values", "controls", "reason"),
    [
        ([1.00, 1.23] * 4, STEADY, "the trials gave 1.0000 in one order and 1.2300 in the other"),
        (STEADY, [0.992, 1.008] * 4, "the controls gave 0.9920 in one order and 1.0080 in the other"),
        (STEADY, cost(1.013), "the controls' median is 1.0130"),
        (STEADY, cost(1.0, noise=8), "the controls' median may be anything from 0.9760 to 1.0240"),
        (cost(1.02), STEADY, "1.02 lies within the interval"),
        (STEADY[:4], STEADY[:4], "4 pairs give no interval, 6 do"),
    ],
)
def test_it_cannot_decide(overhead, capsys, values, controls, reason):
    assert overhead.decide("train time", values, controls, 1.02) == overhead.CANNOT_DECIDE
    assert f"cannot decide: {reason}" in capsys.readouterr().out


def test_only_time_within_the_turns_counts(overhead):
    turns = overhead.Turns(spans={0: [(float("-inf"), 2.0), (3.0, 4.0), (6.0, 7.0)]})
    assert turns.running(0, (1.5, 6.5)) == 0.5 + 1.0 + 0.5
