"""The scaling model: recovered coefficients, cautions, grades and intervals."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize

from helpers.records import record
from trainoff.analysis.figures import time_to
from trainoff.analysis.scaling.curves import PER_1000, curves
from trainoff.analysis.scaling.model import Measurement, alternative_range, fit, graded, most_terms, nnls, nnls_many
from trainoff.analysis.scaling.text import formula_text, grade_text, interpretation, shape_caution

PUBLISHED = {  # train time in seconds on 1, 3, 5 and 17 machines m4.xlarge, from the cluster study of 2017, Appendix B
    60_000: (304.386, 309.405, 304.02, 304.111),
    240_000: (1183.191, 1003.274, 679.665, 679.941),
}


def configs(seconds, counts=(1, 2, 4, 8), rows=1.0, repeats=1):
    return [Measurement(nodes, rows, (seconds(nodes),) * repeats) for nodes in counts]


def published(rows):
    return [
        Measurement(nodes, float(rows), (value,)) for nodes, value in zip((1, 3, 5, 17), PUBLISHED[rows], strict=True)
    ]


@pytest.mark.parametrize(
    ("terms", "counts"),
    [
        ({"constant": 5.0}, (1, 2, 4)),
        ({"work": 12.0}, (1, 2, 4)),
        ({"constant": 2.0, "work": 20.0}, (1, 2, 4)),
        ({"work": 20.0, "log": 1.5}, (1, 2, 4, 8)),
        ({"work": 100.0, "nodes": 0.5}, (1, 2, 4, 8, 16)),
        ({"constant": 3.0, "work": 100.0, "nodes": 0.5}, (1, 2, 4, 8, 16)),
    ],
)
def test_known_coefficients_are_recovered(terms, counts):
    parts = {"constant": lambda n: 1, "work": lambda n: 1 / n, "log": math.log2, "nodes": lambda n: n}

    def seconds(nodes):
        return sum(value * parts[name](nodes) for name, value in terms.items())

    found = fit(configs(seconds, counts))
    assert found.terms == pytest.approx(terms)
    assert found.predict(17).middle == pytest.approx(seconds(17))
    assert max(abs(error) for error in found.grade.left_out.values()) < 0.35


def test_batches_that_grow_with_the_nodes_have_a_cost_of_messages_per_step():
    """136 steps on one node, 8 on 17; a step takes 0.1 s, and 0.08 s more for each doubling of the nodes."""
    law = lambda nodes: 136 / nodes * (0.1 + 0.08 * math.log2(nodes))  # noqa: E731  # a law is a formula
    grows = [Measurement(nodes, 1.0, (law(nodes),), grows=True) for nodes in (1, 2, 4, 8)]
    assert fit(grows).predict(17).middle == pytest.approx(law(17), rel=0.01)
    assert formula_text(fit(grows)) == "13.6 s divided among the nodes + 10.9 s for each doubling, divided too"
    assert abs(fit(configs(law)).predict(17).middle / law(17) - 1) > 0.2, "the other terms cannot have that shape"


def test_growing_batches_are_recognised_in_the_records():
    sizes = {"each": [100, 200, 400], "whole": [400, 400, 400]}
    for name, batches in sizes.items():
        runs = [
            record(f"{name}-{n}", workers=n, mode="sync", train_s=10.0 / n, params={"batch_size": batch})
            for n, batch in zip((1, 2, 4), batches, strict=True)
        ]
        (curve,) = curves(runs)
        assert {config.grows for config in curve.measurements} == {name == "each"}


def test_the_fit_minimises_relative_errors():
    """A second of error at 16 nodes is a tenth; plain least squares would only fit the hundred at one node."""
    found = fit([Measurement(1, 1.0, (105.0,)), *configs(lambda n: 2 + 100 / n, (2, 4, 8, 16))])
    assert found.predict(16).middle == pytest.approx(2 + 100 / 16, rel=0.03)


def test_one_model_of_small_and_large_data_predicts_both():
    def seconds(nodes, rows):
        return 4 + 3e-4 * rows / nodes + 1e-4 * rows

    places = [(nodes, rows) for nodes in (1, 2, 4, 8) for rows in (10_000.0, 100_000.0)]
    found = fit([Measurement(nodes, rows, (seconds(nodes, rows),)) for nodes, rows in places])
    assert found.terms == pytest.approx({"constant": 4.0, "work": 30.0, "rows": 10.0})
    assert found.predict(16, 50_000).middle == pytest.approx(seconds(16, 50_000))
    assert found.predict(16, 50_000).extrapolated
    assert not found.predict(4, 50_000).extrapolated
    assert found.predict(4, 200_000).extrapolated


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=60)
def test_non_negative_least_squares_agree_with_scipys(seed, columns, rows):
    random = np.random.default_rng(seed)
    matrix, right = random.normal(size=(rows, columns)), random.normal(size=rows)
    ours, theirs = nnls_many(matrix, right[:, None], columns)[:, 0], optimize.nnls(matrix, right)[0]
    assert np.all(ours >= 0)
    assert np.linalg.norm(matrix @ ours - right) == pytest.approx(np.linalg.norm(matrix @ theirs - right), abs=1e-9)
    assert nnls(matrix, right)[1] == pytest.approx(np.linalg.norm(matrix @ ours - right) ** 2, abs=1e-9)


def test_many_right_hand_sides_are_solved_like_single_ones():
    random = np.random.default_rng(3)
    matrix, right = random.normal(size=(5, 3)), random.normal(size=(5, 40))
    solved, pairs = nnls_many(matrix, right, 3), nnls_many(matrix, right, 2)
    for column in range(40):
        assert solved[:, column] == pytest.approx(nnls(matrix, right[:, column])[0])
        best = min(nnls(matrix[:, two], right[:, column])[1] for two in ((0, 1), (0, 2), (1, 2)))
        assert np.sum((matrix @ pairs[:, column] - right[:, column]) ** 2) == pytest.approx(best)
    assert np.count_nonzero(pairs, axis=0).max() == 2


def test_equal_and_zero_columns_are_allowed():
    matrix, right = (
        np.array([[1.0, 2.0, 0.0, 1.0], [1.0, 2.0, 0.0, 2.0], [1.0, 2.0, 0.0, 3.0]]),
        np.array([3.0, 5.0, 7.0]),
    )
    for found in (nnls(matrix, right)[0], nnls_many(matrix, right[:, None], 4)[:, 0]):
        assert matrix @ found == pytest.approx(right)
        assert found[2] == 0


@pytest.mark.parametrize("unit", [1 / 3600, 1 / 60, 0.206, 3.6, 1000.0])
@pytest.mark.parametrize(
    "seconds", [(19260.68, 4990.0, 19260.68), (33.14, 33.14, 33.14), (1508.74, 2426.47, 2426.47, 1508.74)]
)
def test_shapes_that_fit_alike_are_not_chosen_by_rounding(seconds, unit):
    """Time divided among the nodes and time for each node are off by the same on 1, 2 and 4: the first one wins."""
    one, other = (fit([Measurement(2**at, 1.0, (each * by,)) for at, each in enumerate(seconds)]) for by in (1.0, unit))
    assert one.terms.keys() == other.terms.keys()
    assert one.terms.keys() == ({"work"} if len(seconds) == 3 and seconds[0] > seconds[1] else {"constant"})
    first, second = one.predict(40), other.predict(40)
    assert (second.low, second.middle, second.high) == pytest.approx(
        tuple(unit * each for each in (first.low, first.middle, first.high)), rel=1e-9
    )


@pytest.mark.parametrize(("counts", "most"), [((1, 2), 2), ((1, 2, 4), 2), ((1, 2, 4, 8), 3), ((1, 2, 3, 4, 5, 6), 5)])
def test_there_are_fewer_terms_than_node_counts(counts, most):
    every = configs(lambda n: 3 + 40 / n + math.log2(n) + 0.5 * n, counts)
    assert most_terms(every) == most
    assert len(fit(every).terms) <= most


def test_two_node_counts_give_amdahls_law_and_no_grade():
    found = fit(configs(lambda n: 2 + 20 / n, (1, 2)))
    assert found.terms == pytest.approx({"constant": 2.0, "work": 20.0})
    assert found.grade.left_out == {}
    assert found.predict(4).error is None
    assert "a third one would" in grade_text(found)
    close, far = found.predict(4), found.predict(16)
    assert far.high / far.middle > 1.8
    assert close.high / close.middle < far.high / far.middle, "predictions further away are less certain"


def test_predictions_are_positive_even_if_time_more_than_doubles():
    model = fit([Measurement(2, 1.0, (10.0,)), Measurement(4, 1.0, (25.0,))])
    assert model.predict(1).middle > 0
    assert interpretation(model).startswith("One node is the fastest")


def test_one_node_count_is_not_enough():
    with pytest.raises(ValueError, match="at least two"):
        fit(configs(lambda n: 1.0, (4,)))


def test_work_that_grows_with_the_nodes_is_reported_as_indistinguishable():
    found = fit([Measurement(nodes, 1000.0 * nodes, (7.0 + 0.1 * nodes,)) for nodes in (1, 2, 4, 8)])
    assert "work" not in found.terms
    assert any("divided among the nodes cannot be distinguished from those constant" in each for each in found.remarks)


def test_predictions_that_depend_on_the_models_shape_have_a_caution():
    """Runs on 1, 2, 4 and 8 nodes fit growth with every doubling nearly as well as growth with every node."""
    law = {nodes: 2 + 40 / nodes + 0.5 * nodes for nodes in (1, 2, 4, 8, 17)}
    found = fit([Measurement(nodes, 1.0, (law[nodes],)) for nodes in (1, 2, 4, 8)])
    assert found.predict(17).middle < 0.85 * law[17]
    low, high = alternative_range(found, 17)
    assert low < law[17] < high
    assert shape_caution(found, 17) == (
        "The prediction for 17 nodes depends on the shape of the model: others that fit these runs nearly as well "
        f"predict {low:.1f} to {high:.1f} s. A run there, or nearer to it, would decide."
    )
    assert shape_caution(found, 8) is None, "inside the measured range all shapes agree"
    steep = fit([Measurement(nodes, 1.0, (40 / nodes,)) for nodes in (1, 2, 4, 8)])
    assert shape_caution(steep, 17) is None, "all shapes that fit agree there, too"


def test_an_inaccurate_model_does_not_claim_that_nodes_make_no_difference():
    flat = fit([Measurement(nodes, 1.0, (seconds,)) for nodes, seconds in ((1, 5.0), (2, 5.1), (4, 4.9))])
    assert interpretation(flat) == "Nodes make no difference: nothing of the time is divided among them."
    wild = fit([Measurement(nodes, 1.0, (seconds,)) for nodes, seconds in ((1, 28.0), (3, 19.0), (5, 30.0))])
    assert re.search(r"; but this model was off by up to \d+%, so it may have missed one\.$", interpretation(wild))


def test_the_models_of_the_published_clusters():
    small, large = fit(published(60_000)), fit(published(240_000))
    assert grade_text(small).endswith("its predictions were off by under 1% at 1, -2% at 3, +1% at 5, +1% at 17.")
    assert grade_text(large).endswith("its predictions were off by +130% at 1, -35% at 3, +18% at 5, +26% at 17.")
    assert small.terms.keys() == {"constant"}
    assert "Nodes make no difference" in interpretation(small)
    assert max(abs(error) for error in small.grade.left_out.values()) < 0.03
    assert large.terms.keys() == {"constant", "work"}
    assert 1.6 < large.speed_up(17) < 1.9
    assert large.enough_nodes() in range(5, 10), "more than five bring little"
    assert {n: round(error, 2) for n, error in large.grade.left_out.items()} == {1: 1.3, 3: -0.35, 5: 0.18, 17: 0.26}
    assert large.predict(32).error == pytest.approx(large.grade.beyond)
    low, high = large.predict(32).low, large.predict(32).high
    assert low < 679.941 < high


def test_held_out_runs_grade_the_model():
    found = graded(fit(configs(lambda n: 2 + 20 / n)), configs(lambda n: (2 + 20 / n) * 1.25, (17,)))
    assert found.grade.held_out == {(17, 1.0): pytest.approx(-0.2)}
    assert "held out it was off by -20% at 17" in grade_text(found)
    assert found.grade.worst == pytest.approx(0.2, abs=0.01)


def test_the_best_and_the_sufficient_number_of_nodes():
    found = fit(configs(lambda n: 100 / n + n, (1, 2, 4, 8, 16)))
    assert found.best_nodes() == 10
    assert found.enough_nodes() == 7
    assert found.speed_up(10) == pytest.approx(101 / 20)
    assert found.efficiency(10) == pytest.approx(10.1 / 20)
    assert "10 nodes are the fastest (5.0 times one), more are slower; more than 7 nodes gain" in interpretation(found)
    assert formula_text(found) == "1:40 divided among the nodes + 1.0 s for each node"
    assert interpretation(fit(configs(lambda n: 1.0 + n))).startswith("One node is the fastest")


times = st.floats(0.01, 1e5)


@given(st.lists(times, min_size=2, max_size=6), st.integers(1, 200))
@settings(max_examples=40)
def test_predictions_are_positive_and_inside_their_intervals(values, at):
    found = fit([Measurement(2**place, 1.0, (value,)) for place, value in enumerate(values)])
    one = found.predict(at)
    assert 0 < one.low <= one.middle <= one.high < math.inf
    assert one.extrapolated == (at > 2 ** (len(values) - 1))
    assert all(value > 0 for value in found.terms.values())
    assert found.formula.seconds(found.best_nodes()) <= found.formula.seconds(at) or at > found.horizon
    assert found.enough_nodes() <= found.best_nodes()
    assert found.predict(at) == one, "the same runs give the same interval"


@given(st.lists(times, min_size=3, max_size=5), st.floats(0.001, 1000))
@settings(max_examples=25)
@example([5311.09, 340.82, 5311.09], 188.0)
def test_the_unit_of_time_does_not_matter(values, unit):
    one = fit([Measurement(2**place, 1.0, (value,)) for place, value in enumerate(values)])
    other = fit([Measurement(2**place, 1.0, (value * unit,)) for place, value in enumerate(values)])
    assert other.predict(40).middle == pytest.approx(one.predict(40).middle * unit, rel=1e-6)


TRUTHS = [(2.0, 20.0, 0.0, 0.0), (0.0, 20.0, 0.0, 0.0), (5.0, 0.0, 1.0, 0.0), (1.0, 30.0, 0.5, 0.1)]


@pytest.mark.parametrize(
    ("repeats", "noise", "truth"),
    [
        pytest.param(*runs, truth, marks=() if (place + runs[0] // 3) % 2 else pytest.mark.soak)
        for runs in [(1, 0.05), (3, 0.03)]
        for place, truth in enumerate(TRUTHS)
    ],
)
def test_intervals_hold_a_new_run_as_often_as_they_claim(truth, repeats, noise):
    random = np.random.default_rng(11)

    def run(nodes):
        constant, work, log, each = truth
        return (constant + work / nodes + log * math.log2(nodes) + each * nodes) * math.exp(noise * random.normal())

    held, widths = [], []
    for _ in range(60):
        found = fit([Measurement(nodes, 1.0, tuple(run(nodes) for _ in range(repeats))) for nodes in (1, 2, 4, 8)])
        for nodes in (3, 6, 17):
            one = found.predict(nodes)
            held.append(one.low <= run(nodes) <= one.high)
            widths += [one.high / one.low] if nodes < 8 else []
    assert np.mean(held) >= 0.9
    assert np.median(widths) < 1 + 12 * noise, "an interval must not be too wide"


def test_with_many_runs_intervals_are_narrow():
    random = np.random.default_rng(5)
    measurements = [
        Measurement(nodes, 1.0, tuple((2 + 20 / nodes) * np.exp(0.02 * random.normal(size=9))))
        for nodes in (1, 2, 4, 8, 16)
    ]
    one = fit(measurements).predict(12)
    assert one.high / one.low < 1.2


def ran(engine, nodes, seconds, seed=1, **more):
    base = {"engine": engine, "workers": nodes, "mode": "sync", "cluster": "lab", "seed": seed, "train_s": seconds}
    return record(f"{engine}-{nodes}-{seed}", **{**base, "cold_s": (seconds or 0) + 5, "samples_seen": 2000, **more})


def test_a_curve_joins_runs_that_differ_in_nodes_only():
    records = [
        *(ran("a", nodes, 10 / nodes, params={"batch_size": 100 * nodes, "epochs": 1}) for nodes in (1, 2, 4)),
        *(ran("b", nodes, 20 / nodes, params={"batch_size": 100, "epochs": 1}) for nodes in (1, 2, 4)),
        ran("b", 8, None, status="crashed", params={"batch_size": 100, "epochs": 1}),
        ran("c", 1, 3.0, mode="single", status="unsupported"),
    ]
    a, b = curves(records)
    assert (a.name, a.counts, b.counts) == ("a", [1, 2, 4], [1, 2, 4])
    assert [config.seconds for config in a.measurements] == [10, 5, 2.5]
    assert len(b.censored) == 1
    assert a.overhead_s == 5.0


def test_other_settings_have_other_curves_named_by_their_difference():
    records = [
        ran("a", nodes, 10 / nodes, params={"batch_size": batch * nodes, "epochs": epochs})
        for nodes in (1, 2, 4)
        for batch in (100, 500)
        for epochs in (1, 3)
    ]
    names = {curve.name for curve in curves(records)}
    assert len(names) == 4
    assert "a with batch size 100 per node, epochs 3" in names or "a with epochs 3, batch size 100 per node" in names


def test_a_larger_first_node_does_not_break_a_curve():
    """With `first` a lab lists its nodes, and a single node has more memory than the smallest of several."""
    large, small = {"cores": 0.1, "memory_gb": 3.0}, {"cores": 0.1, "memory_gb": 1.3}

    def on(nodes):
        listed = [large, *[small] * (nodes - 1)]
        return ran("a", nodes, 10 / nodes, memory_gb=3.0 if nodes == 1 else 1.3, params={"nodes": listed})

    records = [on(nodes) for nodes in (1, 2, 4)]
    (curve,) = curves(records)
    assert curve.counts == [1, 2, 4]
    unlike = ran("a", 3, 4.0, memory_gb=1.3, params={"nodes": [large, small, large]})
    assert len(curves([*records, unlike])) == 2


def test_other_figures_can_be_modelled():
    to = {"time_to_target": {"0.9": None}, "targets": [0.9]}
    records = [ran("a", n, 10 / n, **{**to, "time_to_target": {"0.9": 5 / n if n < 4 else None}}) for n in (1, 2, 4)]
    (curve,) = curves(records, time_to(0.9, "accuracy"))
    assert (curve.counts, len(curve.censored)) == ([1, 2], 1)
    (curve,) = curves(records, PER_1000)
    assert [config.seconds for config in curve.measurements] == pytest.approx([5, 2.5, 1.25])
    rows = [ran("a", 1, 9.0, dataset={"train_rows": 500}), ran("a", 1, 3.0, 2, params={"epochs": 2, "train_rows": 100})]
    assert [config.rows for config in curves(rows)[0].measurements] == [100, 500]
