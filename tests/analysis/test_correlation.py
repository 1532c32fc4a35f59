"""Correlation: fitted lines, and the two published figures."""

import math

import pytest

from trainoff.analysis import groups
from trainoff.analysis.correlation import correlation_lines, correlations, fit_line
from trainoff.reproductions.published import documents, records


def test_points_on_a_line_give_that_line():
    line = fit_line([1.0, 2.0, 4.0], [5.0, 7.0, 11.0])
    assert (line.n, line.slope, line.intercept, line.r_squared) == pytest.approx((3, 2.0, 3.0, 1.0))
    assert line.at(10.0) == pytest.approx(23.0)


def test_a_power_is_a_line_of_logarithms():
    line = fit_line([1.0, 2.0, 4.0, 8.0], [3.0, 6.0 / 4, 3.0 / 4, 3.0 / 8], log=True)
    assert (line.slope, math.exp(line.intercept), line.r_squared) == pytest.approx((-1.0, 3.0, 1.0))
    assert line.at(16.0) == pytest.approx(3.0 / 16)


def test_a_line_worked_by_hand():
    line = fit_line([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((0.5, 1.0, 0.25))


def test_constant_values_have_an_r_squared_of_zero():
    assert fit_line([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]).r_squared == 0.0


@pytest.mark.parametrize(
    ("x", "y", "log"),
    [
        ([1.0, 2.0], [1.0, 2.0], False),
        ([], [], True),
        ([4.0, 4.0, 4.0], [1.0, 2.0, 3.0], False),
        ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], True),
    ],
)
def test_there_is_no_line_through_too_few_points_or_a_single_x(x, y, log):
    assert fit_line(x, y, log) is None


def test_points_need_both_coordinates():
    with pytest.raises(ValueError, match="a y for every x"):
        fit_line([1.0, 2.0, 3.0], [1.0, 2.0])


def test_the_published_data_give_both_published_values():
    (document,) = [one for one in documents() if one.id == "002"]
    found = {
        one.against: one
        for one in correlations(groups(records("machines-and-clusters")))
        if (one.engine, one.workload) == ("spark-mllib", "emnist-mlp")
    }
    assert {one.linear.n for one in found.values()} == {10}, "without the run that failed"
    assert round(found["cores"].linear.r_squared, 3) == 0.853
    assert round(found["memory_gb"].linear.r_squared, 3) == 0.431
    facts = {fact.name: fact.value for fact in document.fact}
    assert facts["R² of CPUs and train time"] == 0.853
    assert facts["R² of memory and train time"] == 0.431
    assert found["cores"].linear.slope < 0, "more cores, less time"
    assert found["cores"].log.r_squared > found["cores"].linear.r_squared, "time is closer to a power of the cores"


def test_clusters_of_several_nodes_are_left_out():
    assert {one.workers for one in correlations(groups(records("machines-and-clusters")))} == {1}


def test_the_sentence_is_given_only_where_sizes_were_compared():
    sentences = correlation_lines(groups(records("machines-and-clusters")))
    assert sentences[1] == (
        "What explains the training time of spark-mllib on emnist-mlp, as R² over 10 sizes of nodes: "
        "cores 0.853 (0.941 by logarithms), memory 0.431 (0.592 by logarithms)."
    )
    assert correlation_lines(groups(records("executors"))) == [], "their workers differ, too"
