"""Pareto fronts and bottlenecks."""

import numpy as np
import pytest

from helpers.records import distributed_record, timed_record
from trainoff.analysis import groups
from trainoff.analysis.bottleneck import bottleneck, bottleneck_sentence
from trainoff.analysis.pareto import fronts, pareto


def test_a_front_worked_by_hand():
    points = [(1, 9), (2, 5), (3, 7), (4, 2), (4, 3), (9, 2), (2, 5)]
    assert pareto(points) == [True, True, False, True, False, False, True]
    assert pareto([]) == []
    assert pareto([(1, 1)]) == [True]


def test_a_front_fulfils_its_definition():
    points = [tuple(point) for point in np.random.default_rng(1).integers(0, 40, (200, 2)).tolist()]
    for point, is_on_front in zip(points, pareto(points), strict=True):
        dominated = any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
        assert is_on_front != dominated


def test_fronts_are_named_and_one_of_money_needs_a_price():
    def run(engine, train, accuracy, **more):
        return timed_record(engine, 1.0, train_s=train, test_accuracy=accuracy, cpu_s=10 / train, **more)

    lost = run("d", 9.0, 0.99, status="crashed")
    found = groups([run("a", 1.0, 0.9), run("b", 2.0, 0.95), run("c", 3.0, 0.92), lost])
    by_cost = {front.against: front for front in fronts(found)}
    assert list(by_cost) == ["seconds", "core-seconds"]
    points = [(point.group.first.engine, point.cost, point.best) for point in by_cost["seconds"].points]
    assert points == [("a", 1.0, True), ("b", 2.0, True), ("c", 3.0, False)]
    assert [point.best for point in by_cost["core-seconds"].points] == [True, True, False]
    priced = groups([run("a", 1.0, 0.9, cost_usd=0.1), run("b", 2.0, 0.95)])
    assert [len(front.points) for front in fronts(priced) if front.against == "money"] == [1]


def test_a_smaller_error_is_better_on_a_front():
    runs = [
        timed_record(engine, 1.0, metric="error", test_metrics={"error": error}, train_s=train)
        for engine, error, train in (("a", 0.2, 1.0), ("b", 0.3, 2.0))
    ]
    assert [point.best for point in fronts(groups(runs))[0].points] == [True, False]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"training": {"cpu_share": 0.97}}, "CPU-bound (97% of its CPUs busy)"),
        ({"training": {"cpu_share": 0.4}}, "not bound by its CPUs (60% of them idle; why is not on record)"),
        (
            {"training": {"cpu_share": 0.97}, "counts": {"gc_s": 2.0, "python_gc_s": 1.0}},
            "garbage-bound (33% of the workers' time spent on collecting it)",
        ),
        (
            {"training": {"cpu_share": 0.3}, "noise": {"io_pressure": 0.5, "memory_pressure": 0.3}},
            "disk-bound (50% of the time something waited for storage)",
        ),
        ({"noise": {"memory_pressure": 0.3}}, "memory-bound (30% of the time something waited for memory)"),
        ({"counts": {"gpu_busy": 0.95}}, "GPU-bound (95% of the training its GPU was busy)"),
    ],
)
def test_the_bottleneck_is_reported_with_its_figure(more, text):
    run = timed_record("numpy", 1.0, train_s=9.0, **more)
    assert str(bottleneck(run)) == text
    assert bottleneck_sentence(run) == f"In 9.0 s of training numpy was {text}."


def test_the_bottleneck_of_a_distributed_trial_is_from_its_workers():
    run = distributed_record("tf-ps", "sync", computing=2.0, communicating=7.0)
    assert bottleneck_sentence(run) == (
        "In 10.0 s of training tf-ps was network-bound (70% of the workers' time spent on calls and transfers)."
    )


def test_an_unknown_bottleneck_is_not_reported_and_a_lack_of_memory_is():
    assert bottleneck_sentence(timed_record("numpy", 1.0)) is None
    short = timed_record("numpy", None, status="out-of-memory", reason="worker-0 used 2.1 GiB of 2 GiB")
    assert bottleneck_sentence(short) == "numpy was memory-bound: worker-0 used 2.1 GiB of 2 GiB."
