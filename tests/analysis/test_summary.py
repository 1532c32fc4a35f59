"""Sentences about records: ranking, closing sentences, bottlenecks, figures for people."""

import pytest

from helpers.records import FAST, distributed_record, timed_groups, timed_record
from trainoff.analysis import failure, groups, headline_target, ranked
from trainoff.analysis.bottleneck import (
    bound,
    bound_sentences,
    resource_lines,
    staleness,
    start_costs,
    time_split,
    worker_lines,
)
from trainoff.analysis.correlation import batch_lines
from trainoff.analysis.format import about, count, ratio_text, seconds, size, span, value_text
from trainoff.analysis.pareto import cheapest_settings
from trainoff.analysis.summary import closing_sentences


def test_the_fastest_to_the_target_is_first_with_its_ratio():
    found = groups([timed_record("slow", 8.0), timed_record("fast", 2.0)])
    assert [group.first.engine for group in ranked(found)] == ["fast", "slow"]
    assert closing_sentences(found) == [
        "fast reached 97% first: 2.0 s of training; slow took 4.0 times as long.",
        "One run each, so this is indicative: --repeat 5 makes it a ranking.",
        "All of them did the same arithmetic, checked against the reference.",
    ]


def test_similar_times_are_reported_as_similar():
    found = groups([timed_record("fast", 2.0), timed_record("close", 2.05)])
    assert "close took about as long" in closing_sentences(found)[0]


def test_settled_parameters_do_not_label_a_group():
    plain = {"optimizer": "momentum", "train_rows": None}
    other = {"optimizer": "l-bfgs", "train_rows": None}
    found = groups(
        [timed_record("numpy", 2.0, params=plain), timed_record("mllib", 9.0, params=other, settled=["optimizer"])]
    )
    assert [group.label for group in found] == [{}, {}]
    found = groups([timed_record("numpy", 2.0, params=plain), timed_record("mllib", 9.0, params=other)])
    assert [group.label for group in found] == [{"optimizer": "momentum"}, {"optimizer": "l-bfgs"}]


def test_an_engine_that_missed_the_target_is_named():
    found = groups([timed_record("fast", 2.0), timed_record("never", None)])
    assert closing_sentences(found)[0] == (
        "fast reached 97% first: 2.0 s of training; never had not reached it after 9.0 s."
    )


def test_a_median_of_repetitions_counts_missed_targets():
    found = groups([timed_record("a", 1.0, 1), timed_record("a", None, 2), timed_record("a", None, 3)])
    assert found[0].time_to(0.97) is None
    assert found[0].time_to(0.95) == 1.0


def test_five_repetitions_give_a_verdict_with_its_uncertainty():
    found = timed_groups(slow=[3.0, 3.2, 2.9, 3.1, 3.0], fast=FAST)
    assert closing_sentences(found) == [
        "fast reached 97% first: 1.0 s of training, 3.0 times faster than slow (2.9 to 3.2, n = 5).",
        "All of them did the same arithmetic, checked against the reference.",
    ]


def test_in_a_tie_no_engine_is_first():
    found = timed_groups(a=FAST, b=[1.005 * time for time in FAST], slow=[2 * time for time in FAST])
    assert closing_sentences(found)[0] == (
        "a reached 97% after 1.0 s of training, "
        "a tie with b (1.00 to 1.00 times as long, n = 5, inside the band of 10%, from the spread of repetitions), "
        "2.0 times faster than slow (2.0 to 2.0, n = 5)."
    )


def test_an_unclear_difference_of_five_repetitions_is_undecided():
    found = timed_groups(a=FAST, b=[1.5, 0.9, 1.6, 0.8, 1.7])
    assert closing_sentences(found)[0].startswith("a reached 97% after 1.0 s of training; b took 1.2")
    assert "times as long, which is undecided (" in closing_sentences(found)[0]


def test_runs_that_missed_the_target_are_counted():
    assert closing_sentences(timed_groups(a=FAST, b=[None] * 5))[0] == (
        "a reached 97% first: 1.0 s of training; b had not reached it after 9.0 s in 5 of 5 runs."
    )
    assert closing_sentences(timed_groups(a=FAST, b=[1.02, 1.0, None, 1.1, 0.9]))[0] == (
        "a reached 97% after 1.0 s of training; b took about as long and reached it in 4 of 5 runs, which is undecided."
    )


def test_the_headline_is_the_highest_target_that_half_of_the_groups_reached():
    most = [timed_record("a", 1.0), timed_record("b", None), timed_record("c", None)]
    assert headline_target(groups(most)) == 0.95
    assert headline_target(groups([timed_record("a", None, time_to_target={"0.95": None, "0.97": None})])) is None


def test_the_first_is_chosen_among_runs_without_faults():
    fault = {"epochs": 4, "fault": {"action": "slow", "node": 1, "at": 0.3, "share": 0.25, "for_s": None}}
    undisturbed = {"a": {"0.97": 5.0, "0.98": None}, "b": {"0.97": 6.0, "0.98": 9.0}}
    records = [
        timed_record(engine, None, seed, targets=[0.97, 0.98], time_to_target=times, params=params)
        for engine, times in undisturbed.items()
        for seed, (times, params) in enumerate([(times, {"epochs": 4}), ({"0.97": 8.0, "0.98": None}, fault)])
    ]
    assert closing_sentences(groups(records))[0].startswith(
        "b reached 98% first: 9.0 s of training; a had not reached it"
    )


def test_an_engine_that_is_different_by_design_is_named():
    other = {"verdict": "different by design", "reason": "L-BFGS, whole data per step"}
    sentences = closing_sentences(groups([timed_record("a", 1.0), timed_record("b", 2.0, equivalence=other)]))
    assert sentences[-1] == (
        "b solves the problem another way (L-BFGS, whole data per step); all others did the same arithmetic, checked."
    )


def test_engines_that_differ_for_the_same_reason_share_a_sentence():
    other = {"verdict": "different by design", "reason": "10 steps alone"}
    differing = [timed_record(name, 2.0, equivalence=other) for name in "bcd"]
    alone = timed_record("e", 2.0, equivalence={**other, "reason": "L-BFGS"})
    assert closing_sentences(groups([timed_record("a", 1.0), *differing, alone]))[-1] == (
        "b, c and d solve the problem another way (10 steps alone); "
        "e solves the problem another way (L-BFGS); all others did the same arithmetic, checked."
    )


def test_the_best_setting_represents_its_engine():
    design = {"verdict": "different by design", "reason": "L-BFGS"}
    small = {"verdict": None, "reason": "too few steps"}
    runs = [timed_record("b", 1.0, equivalence=design), timed_record("b", 2.0, params={"epochs": 1}, equivalence=small)]
    assert closing_sentences(groups(runs))[-1] == "b solves the problem another way (L-BFGS)."


def test_engines_that_could_not_be_checked_are_named():
    small = {"verdict": None, "reason": "the steps are too small to be distinguished from float32 rounding"}
    sentences = closing_sentences(
        groups([timed_record("a", 1.0, equivalence=small), timed_record("b", 2.0, equivalence=small)])
    )
    assert "same arithmetic" not in sentences[-1]
    assert sentences[-1].startswith("a and b could not be checked against the reference (the steps are too small")


def test_groups_of_a_grid_are_named_by_what_varies():
    found = groups([timed_record("a", 1.0, params={"epochs": 2}), timed_record("a", 2.0, 2, params={"epochs": 4})])
    assert [group.name for group in ranked(found)] == ["a with epochs 2", "a with epochs 4"]


def test_a_target_is_printed_as_it_was_given():
    record = timed_record("a", 1.0, targets=[0.945], time_to_target={"0.945": 1.0})
    assert closing_sentences(groups([record]))[0] == "a reached 94.5% after 1.0 s of training."


def test_an_accuracy_no_better_than_guessing_is_pointed_out():
    lost = timed_record("a", None, time_to_target={}, test_accuracy=0.11, model={"classes": 10})
    assert closing_sentences(groups([lost]))[0].endswith("an accuracy of 0.1100, no better than guessing.")


def test_if_every_trial_failed_the_summary_says_so():
    bad = timed_record("a", None, status="crashed", phase="train", cold_s=3.2, reason="worker-1: boom")
    assert closing_sentences(groups([bad])) == ["No trial ended well."]
    assert failure(bad) == "crashed in train after 3.2 s: worker-1: boom"


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (seconds, None, "-"),
        (seconds, 0.004, "4 ms"),
        (seconds, 5.12, "5.1 s"),
        (seconds, 98.4, "98.4 s"),
        (seconds, 99.97, "1:40"),
        (seconds, 7500, "2:05:00"),
        (ratio_text, 0.476, "0.48"),
        (ratio_text, 1.05, "1.05"),
        (ratio_text, 1.26, "1.3"),
        (ratio_text, 1234.0, "1,234"),
        (about, 38, "40 s"),
        (about, 260, "4 min"),
        (about, 9000, "2.5 h"),
        (size, 0, "-"),
        (size, 999, "999 B"),
        (size, 41_000_000, "41 MB"),
        (size, 2_400_000_000, "2.4 GB"),
    ],
)
def test_figures_for_people(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (3.2, 3.94, "3.2 to 3.9 s"),
        (0.08, 0.2, "80 ms to 0.2 s"),
        (0.02, 0.03, "20 to 30 ms"),
        (98.0, 130.0, "98.0 s to 2:10"),
        (3.0, float("inf"), "3.0 s to never"),
        (float("inf"), float("inf"), "never"),
    ],
)
def test_a_span_names_its_unit_once(low, high, text):
    assert span(low, high) == text


def test_count_with_singular_and_plural():
    assert (count(1, "trial"), count(13, "trial")) == ("1 trial", "13 trials")


def test_a_smaller_error_is_better():
    def clicks(engine: str, error: float, time: float | None):
        return timed_record(
            engine,
            None,
            workload="clicks-logreg",
            metric="error",
            targets=[0.2, 0.18],
            time_to_target={"0.2": 1.0, "0.18": time},
            test_metrics={"error": error},
        )

    found = groups([clicks("worse", 0.19, None), clicks("better", 0.175, 3.0)])
    assert headline_target(found) == 0.18
    assert [group.first.engine for group in ranked(found)] == ["better", "worse"]
    assert (
        closing_sentences(found)[0]
        == "better reached 18% error first: 3.0 s of training; worse had not reached it after 9.0 s."
    )
    nowhere = groups([clicks("a", 0.24, None) for _ in range(1)])
    nowhere[0].first.time_to_target = {}
    assert closing_sentences(nowhere)[0] == "No engine reached a target; a came closest with error 0.2400."


def test_the_cheapest_setting_of_a_target_has_the_least_cpu_time():
    def tried(engine: str, epochs: int, accuracy: float, cpu: float):
        return timed_record(engine, None, epochs, params={"epochs": epochs}, test_accuracy=accuracy, cpu_s=cpu)

    found = groups(
        [tried("a", 1, 0.96, 2.0), tried("a", 2, 0.98, 4.0), tried("a", 9, 0.99, 20.0), tried("b", 1, 0.94, 1.0)]
    )
    cheapest = [
        (price.target, price.group.first.engine, price.group.first.params["epochs"])
        for price in cheapest_settings(found)
    ]
    assert cheapest == [(0.95, "a", 1), (0.97, "a", 2)]
    assert cheapest_settings(groups([tried("a", 1, 0.99, 2.0), tried("b", 1, 0.99, 1.0)])) == []


@pytest.mark.parametrize(
    ("computing", "communicating", "cpu", "text"),
    [
        (7.0, 2.0, 0.5, "computing-bound (70% of the workers' time)"),
        (2.0, 7.0, 0.5, "network-bound (70% of the workers' time spent on calls and transfers)"),
        (2.0, 1.0, 0.5, "wait-bound (70% of the workers' time spent waiting)"),
        (2.0, 7.0, 0.97, "CPU-bound (97% of its CPUs busy)"),
    ],
)
def test_a_bottleneck_is_reported_with_its_figure(computing, communicating, cpu, text):
    record = distributed_record("tf-ps", "sync", computing=computing, communicating=communicating, cpu=cpu)
    assert str(bound(record)) == text


def test_a_record_without_workers_has_no_bottleneck():
    assert bound(timed_record("numpy", 2.0)) is None
    assert worker_lines(groups([timed_record("numpy", 2.0)])) == []


def test_staleness_is_reported_as_mean_and_maximum():
    record = distributed_record(
        "tf-ps", "async", computing=2.0, communicating=7.0, breakdowns={"staleness": {"0": 5.0, "1": 4.0, "10": 1.0}}
    )
    assert staleness(record) == (1.4, 10)
    ((name, parts),) = worker_lines(groups([record]))
    assert name == "tf-ps (async, 2 workers)"
    assert "gradients missed 1.4 updates, at most 10" in parts
    assert "200 MB/s" in parts


def test_resources_are_reported_role_by_role():
    record = distributed_record("tf-ps", "async", computing=2.0, communicating=7.0, cpu=0.77)
    record.training |= {"load": 1.5, "runnable": 2.25, "memory_share": 0.0912, "cpu_cores_by_role": {"ps-0": 0.381}}
    record.network_bytes_by_role = {"ps-0": {"sent": 2_400_000_000, "received": 31_000_000}}
    record.peak_memory_bytes_by_role = {"ps-0": 350_000_000}
    assert resource_lines(record) == [
        "CPUs 77% busy, load 1.5, runnable 2.25, memory 9.1% of the machine's, network 200 MB/s",
        "ps-0: 0.38 cores, at most 350 MB of memory, sent 2.4 GB and received 31 MB in all",
    ]
    assert resource_lines(timed_record("numpy", 2.0)) == []


def test_modes_of_an_engine_are_compared_by_their_bottlenecks():
    fault = {"fault": {"action": "slow", "node": 1, "at": 0.3, "share": 0.25, "for_s": None}}
    found = groups(
        [
            distributed_record("tf-ps", "sync", computing=2.0, communicating=2.0),
            distributed_record("tf-ps", "async", computing=2.0, communicating=7.0),
            distributed_record("tf-ps", "async", computing=9.0, communicating=1.0, params=fault),
        ]
    )
    assert bound_sentences(found) == [
        "On digits-mlp, tf-ps sync is wait-bound (60% of the workers' time spent waiting); "
        "tf-ps async is network-bound (70% of the workers' time spent on calls and transfers)."
    ]
    assert "tf-ps (async, 2 workers) with fault slow node 1 to 25%" in [group.name for group in found]


def batch(size: int, speed: float, accuracy: float, **more):
    return timed_record(
        "tf-ps",
        None,
        mode="async",
        workers=2,
        params={"batch_size": size},
        samples_per_s=speed,
        test_accuracy=accuracy,
        **{"samples_seen": 10_000, **more},
    )


def test_batch_sizes_are_compared_by_speed_and_by_accuracy_per_sample():
    found = groups([batch(100, 9000, 0.9), batch(1, 90, 0.95), batch(1000, 20_000, 0.6)])
    assert batch_lines(found) == [
        "tf-ps (async, 2 workers) on digits-mlp: batches of 1,000 were fastest, 20,000 samples/s (1: 90, 100: 9,000); "
        "accuracy after the same 10,000 samples: 0.9500 with 1, 0.9000 with 100, 0.6000 with 1,000."
    ]
    unequal = groups([batch(100, 9000, 0.9), batch(1, 90, 0.95, samples_seen=9), batch(1000, 20_000, 0.6)])
    assert "after unequal numbers of samples" in batch_lines(unequal)[0]
    assert batch_lines(found[:2]) == [], "two sizes are not enough"
    other = groups([batch(100, 9000, 0.9), batch(1, 90, 0.95), batch(1000, 20_000, 0.6, cores=2.0)])
    assert batch_lines(other) == [], "on nodes of other sizes they are not comparable"


def test_an_engine_that_is_exact_in_one_mode_only_is_named_with_the_other():
    differs = {"verdict": "different by design", "reason": "it does"}
    found = groups(
        [timed_record("tf-ps", 2.0, mode="sync"), timed_record("tf-ps", 3.0, mode="async", equivalence=differs)]
    )
    assert closing_sentences(found)[-1] == (
        "tf-ps async solves the problem another way (it does); all others did the same arithmetic, checked."
    )


PHASES = {
    "import": 1.0,
    "cluster_start": 20.0,
    "compile": 2.0,
    "data_load": 0.5,
    "ship": 3.0,
    "train": 10.0,
    "test": 0.2,
    "teardown": 4.0,
}


def on_spark(feeding, **more):
    parts = {"computing_s": {"worker-0": 5.0, "worker-1": 5.0}, "feeding_s": feeding, "waiting_s": {"worker-0": 3.0}}
    facts = {"phases_s": PHASES, "train_s": 10.0, "mode": "sync", "workers": 2, "breakdowns": parts if feeding else {}}
    return timed_record("tf-on-spark", 8.0, **{**facts, **more})


def test_the_split_of_time_adds_up_and_has_the_feed_apart():
    (group,) = groups([on_spark({"worker-0": 1.0, "worker-1": 3.0})])
    found = time_split(group)
    assert (found.start, found.rows, found.feed, found.training) == (23.0, 3.5, 2.0, 8.0)
    assert found.whole == pytest.approx(sum(PHASES.values()))


def test_without_pushed_rows_there_is_no_feed():
    (group,) = groups([on_spark({})])
    assert time_split(group).feed is None
    assert time_split(group).training == 10.0


def test_a_start_longer_than_the_training_is_pointed_out():
    (sentence,) = start_costs(groups([on_spark({"worker-0": 2.0})]))
    assert sentence.startswith("tf-on-spark (sync, 2 workers) spent 23.0 s starting, 2.0 s feeding and 8.0 s training")
    assert start_costs(groups([on_spark({}, phases_s={**PHASES, "train": 30.0})])) == []
    assert start_costs(groups([on_spark({}, mode="single", workers=1)])) == []


def test_waiting_for_rows_is_reported_apart():
    ((_, parts),) = worker_lines(groups([on_spark({"worker-0": 2.0, "worker-1": 2.0})]))
    assert "waiting for rows 20%" in parts


def test_a_training_that_waits_for_rows_is_feed_bound():
    parts = {"computing_s": {"worker-0": 1.0}, "feeding_s": {"worker-0": 8.0}, "waiting_s": {"worker-0": 1.0}}
    found = bound(on_spark({}, breakdowns=parts, training={"cpu_share": 0.3}))
    assert str(found) == "feed-bound (80% of the workers' time spent waiting for rows)"


def crashed(engine, seed):
    return timed_record(engine, None, seed, status="crashed", time_to_target={"0.95": None, "0.97": None}, train_s=None)


def test_a_setting_that_mostly_crashes_is_not_first():
    runs = [timed_record("fast", 1.0, 1), *(crashed("fast", seed) for seed in (2, 3, 4, 5))]
    found = groups([*runs, *(timed_record("slow", 2.0, seed) for seed in (1, 2, 3, 4, 5))])
    assert [group.first.engine for group in ranked(found)] == ["slow", "fast"]
    assert closing_sentences(found)[0].startswith("slow reached 97% first: 2.0 s of training; fast had not reached it")


def test_the_first_may_have_missed_the_target_in_some_runs():
    mixed = [timed_record("a", 1.0 if seed < 5 else None, seed) for seed in range(1, 7)]
    found = groups([*mixed, *(timed_record("b", 2.3, seed) for seed in range(1, 7))])
    sentence = closing_sentences(found)[0]
    assert (
        sentence
        == "a reached 97% after 1.0 s of training in 4 of 6 runs; b took 2.3 times as long, which is undecided."
    )


def test_runs_without_the_target_do_not_count_as_missed():
    asked = [timed_record("a", 1.0, seed, study="x") for seed in (1, 2, 3)]
    other = {"study": "y", "targets": [0.95], "time_to_target": {"0.95": 1.0}}
    found = groups(
        [*asked, *(timed_record("a", None, seed, **other) for seed in range(4, 9)), timed_record("b", 2.0, study="x")]
    )
    assert closing_sentences(found)[0].startswith("a reached 97% first")


def test_an_engine_with_wrong_results_is_named():
    found = groups([timed_record("a", 1.0), timed_record("b", 2.0), timed_record("w", 0.5, status="wrong-result")])
    assert "w did other arithmetic than the reference and is excluded." in closing_sentences(found)
    assert "All others did the same arithmetic, checked against the reference." in closing_sentences(found)


def test_only_engines_with_few_runs_are_indicative():
    found = groups([timed_record("b", 3.0), *(timed_record("a", 1.0, seed) for seed in range(1, 6))])
    assert "Fewer than 5 runs of b, so their results are indicative: --repeat 5." in closing_sentences(found)


def test_phases_are_of_the_runs_that_ended_well():
    early = timed_record("a", None, 1, status="start-failed", phases_s={"import": 1.0})
    whole = [timed_record("a", 1.0, seed, phases_s={"import": 2.0, "train": 4.0}) for seed in (2, 3)]
    assert groups([early, *whole])[0].phases_s() == {"import": 2.0, "train": 4.0}


def test_different_nodes_are_counted_by_size():
    first, rest = {"cores": 0.1, "memory_gb": 3.0}, {"cores": 0.1, "memory_gb": 1.3}
    assert value_text([first, rest, rest]) == "1 of 0.1 cores, 3 GB + 2 of 0.1 cores, 1.3 GB"
    assert value_text([{"cores": 2.0}]) == "1 of 2 cores"
    assert value_text([200, 100]) == "[200, 100]"
