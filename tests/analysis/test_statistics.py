"""Intervals and tests against exact counting and against scipy."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from trainoff.analysis.statistics import Interval, coverage, interval, quantile, rank_test, two_sided


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_values_have_a_range_and_no_level(n):
    assert interval(range(n)) == Interval((n - 1) / 2, 0, n - 1, None, n)


@pytest.mark.parametrize(
    ("n", "low", "high", "level"),
    [  # worked by hand: 1 - 2 P(Binomial(n, 1/2) <= low - 1)
        (6, 1, 6, 1 - 2 / 64),
        (8, 1, 8, 1 - 2 / 256),
        (9, 2, 8, 1 - 2 * 10 / 512),
        (12, 3, 10, 1 - 2 * 79 / 4096),
        (20, 6, 15, 1 - 2 * 21700 / 2**20),
    ],
)
def test_the_interval_of_a_median_by_order_statistics(n, low, high, level):
    found = interval(list(range(n, 0, -1)))
    assert (found.low, found.high, found.n) == (low, high, n)
    assert found.level == pytest.approx(level, abs=1e-12)


@pytest.mark.parametrize("n", [6, 7, 15, 40, 101])
def test_the_level_is_binomial_and_the_interval_the_narrowest(n):
    found = interval(range(n))
    rank = int(found.low)
    assert found.level == pytest.approx(1 - 2 * stats.binom.cdf(rank, n, 0.5), abs=1e-12)
    assert coverage(n, rank + 1) < 0.95 <= found.level


def test_the_interval_holds_the_median_as_often_as_its_level():
    samples = np.random.default_rng(1).lognormal(size=(4000, 9))
    found = [interval(row) for row in samples]
    held = np.mean([each.low <= 1 <= each.high for each in found])
    assert held == pytest.approx(found[0].level, abs=4 * math.sqrt(0.96 * 0.04 / 4000))


def test_missed_targets_stay_infinite():
    inf = math.inf
    assert interval([1.0, 2.0, inf]) == Interval(2.0, 1.0, inf, None, 3)
    assert interval([1.0, inf]).median == inf
    assert interval([1.0, 2.0, 3.0, inf, inf, inf, inf]) == Interval(inf, 1.0, inf, 1 - 2 / 128, 7)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_the_median_of_censored_runs_is_that_of_kaplan_and_meier():
    reached, end = [3.0, 1.0, 2.5, 2.0, 4.0], 9.0
    for never in (0, 2, 4):
        estimate = stats.ecdf(stats.CensoredData(uncensored=reached, right=[end] * never)).sf
        expected = estimate.quantiles[estimate.probabilities <= 0.5][0]
        assert interval([*reached, *[math.inf] * never]).median == expected


@pytest.mark.parametrize("freedom", [1, 2, 4, 5, 9, 30, 300])
def test_students_t_agrees_with_scipys(freedom):
    for t in (0.0, 0.001, 0.3, 1.0, 2.5, 12.0, 500.0):
        assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)
    for level in (0.5, 0.9, 0.95, 0.999):
        assert quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)
    assert two_sided(math.inf, freedom) == 0.0


def test_the_rank_test_without_ties_agrees_with_scipys():
    rng = np.random.default_rng(2)
    for sizes in [(5, 5), (6, 8), (3, 9)]:
        a, b = rng.normal(size=sizes[0]), rng.normal(0.7, size=sizes[1])
        expected = stats.mannwhitneyu(a, b, method="exact").pvalue
        assert rank_test(a, b) == pytest.approx(expected, rel=1e-12)


def test_the_rank_test_with_ties_counts_all_permutations():
    inf = math.inf
    for a, b in [([1, 2, 3, inf, inf], [2, inf, inf, inf, inf]), ([1, 1, 2], [2, 3, inf]), ([inf, inf], [inf, inf])]:
        ranks = stats.rankdata([*a, *b])
        centre = len(a) * (len(ranks) + 1) / 2
        deviations = [abs(sum(chosen) - centre) for chosen in itertools.combinations(ranks, len(a))]
        observed = abs(sum(ranks[: len(a)]) - centre)
        assert rank_test(a, b) == pytest.approx(np.mean([each >= observed - 1e-9 for each in deviations]), rel=1e-12)


def test_five_finite_values_against_five_infinite_ones():
    assert rank_test([1, 2, 3, 4, 5], [math.inf] * 5) == pytest.approx(2 / 252)
