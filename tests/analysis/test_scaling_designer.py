"""The design of runs: within a budget of time, where they narrow the intervals most."""

import itertools
import math

import numpy as np
import pytest

from trainoff.analysis.scaling.designer import Information, RunCandidate, Subject, design, grid
from trainoff.analysis.scaling.model import Measurement, fit


def seconds(nodes):
    return 2 + 60 / nodes + 0.1 * nodes


def pilot(counts=(1, 2)):
    return fit([Measurement(nodes, 1.0, (seconds(nodes),)) for nodes in counts])


def candidates(model, most, overhead=3.0, curve="a"):
    places = grid(model.counts, [model.formula.rows], most)
    return [RunCandidate(curve, nodes, rows, overhead + model.formula.seconds(nodes, rows)) for nodes, rows in places]


def test_the_budget_is_kept_and_intervals_shrink():
    model = pilot()
    subject = Subject.of_fit(model, [17])
    chosen = design({"a": subject}, candidates(model, 8), 120)
    assert chosen
    assert chosen[-1].spent_s == pytest.approx(sum(choice.candidate.seconds for choice in chosen))
    assert chosen[-1].spent_s <= 120
    present = Information(subject, several_rows=False)
    assert chosen[0].before == pytest.approx(1.96 * math.sqrt(present.variance(present.matrix)))
    assert all(choice.width < choice.before for choice in chosen)
    assert all(one.width == other.before for one, other in itertools.pairwise(chosen))


def test_the_node_count_in_question_is_run_if_it_can_be():
    model = pilot()
    chosen = design({"a": Subject.of_fit(model, [17])}, candidates(model, 17), 60)
    assert chosen[0].candidate.nodes == 17


def test_no_run_is_chosen_if_none_fits_into_the_budget():
    model = pilot()
    assert design({"a": Subject.of_fit(model, [17])}, candidates(model, 17), 1.0) == []


def test_a_well_known_curve_gets_no_runs():
    model = fit([Measurement(nodes, 1.0, (seconds(nodes),) * 30) for nodes in (1, 2, 4, 8, 16)])
    assert design({"a": Subject.of_fit(model, [8])}, candidates(model, 16), 1e6) == []


def test_the_less_known_curve_gets_the_runs():
    good = fit([Measurement(nodes, 1.0, (seconds(nodes),) * 9) for nodes in (1, 2, 4, 8, 16)])
    bad = pilot()
    subjects = {"good": Subject.of_fit(good, [17]), "bad": Subject.of_fit(bad, [17])}
    offered = [*candidates(good, 17, curve="good"), *candidates(bad, 17, curve="bad")]
    assert {choice.candidate.curve for choice in design(subjects, offered, 30)} == {"bad"}


def test_one_node_count_is_enough_to_design_runs():
    subject = Subject.of_one_count([Measurement(2, 1.0, (11.0,))], [17])
    assert subject.formula.seconds(2) == pytest.approx(11.0)
    offered = [RunCandidate("a", nodes, 1.0, 5 + subject.formula.seconds(nodes)) for nodes in (1, 2, 4, 8)]
    assert 2 not in {choice.candidate.nodes for choice in design({"a": subject}, offered, 40)}


def test_the_grid_is_denser_at_few_nodes():
    assert [nodes for nodes, _ in grid([1, 5], [1.0], 17)] == [1, 2, 3, 4, 5, 6, 8, 12, 16, 17]
    assert grid([1], [10.0, 20.0], 1) == [(1, 10.0), (1, 20.0)]


def test_designed_runs_predict_better_than_equal_spending():
    """A pilot on one and two nodes, then two minutes of designed runs, or of runs on all node counts alike."""
    random = np.random.default_rng(4)
    off = {"designed": [], "equal": []}
    for _ in range(60):
        constant, work, each = random.uniform(0, 4), random.uniform(30, 80), random.uniform(0, 0.3)

        def run(nodes, constant=constant, work=work, each=each):
            return (constant + work / nodes + each * nodes) * math.exp(0.04 * random.normal())

        pilot_runs = [Measurement(nodes, 1.0, (run(nodes),)) for nodes in (1, 2)]
        model = fit(pilot_runs)
        offered = candidates(model, 8)
        plan = [choice.candidate.nodes for choice in design({"a": Subject.of_fit(model, [17])}, offered, 120)]
        plans = {"designed": plan, "equal": _in_turn(offered, 120, random)}
        for name, counts in plans.items():
            runs = {one.nodes: [*one.runs] for one in pilot_runs}
            for nodes in counts:
                runs.setdefault(nodes, []).append(run(nodes))
            found = fit([Measurement(nodes, 1.0, tuple(values)) for nodes, values in runs.items()])
            truth = constant + work / 17 + each * 17
            off[name].append(abs(math.log(found.formula.seconds(17) / truth)))
    assert np.mean(off["designed"]) < np.mean(off["equal"])


def _in_turn(offered, budget, random):
    """Return node counts: all candidates in random order, again and again while one fits into the budget."""
    counts, spent = [], 0.0
    while True:
        before = spent
        for place in random.permutation(len(offered)):
            if spent + offered[place].seconds <= budget:
                spent += offered[place].seconds
                counts.append(offered[place].nodes)
        if spent == before:
            return counts
