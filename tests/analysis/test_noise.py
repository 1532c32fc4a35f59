"""The noise report of a trial, and the control kernel."""

import os
from types import SimpleNamespace

import pytest

from helpers.records import timed_record
from helpers.running import only_record, study, trainoff
from trainoff.analysis import disturbances
from trainoff.analysis.noise import noise_reports
from trainoff.errors import TrainoffError
from trainoff.runner import machine
from trainoff.runner.machine import ControlKernel

CALM = {
    "load_before": 1.0,
    "other_cores": 0.05,
    "steal_cores": 0.01,
    "cpu_pressure": 0.02,
    "memory_pressure": 0.0,
    "io_pressure": 0.01,
    "control_before": 180.0,
    "control_after": 181.0,
}


def run(seed=1, **noise):
    return timed_record("numpy", 1.0, seed, noise={**CALM, **noise})


def noise_report(record, others=()):
    """Return the report on one trial among others of its study."""
    return noise_reports([record, *(other for other in others if other is not record)])[0]


def test_a_quiet_trial_has_no_reasons():
    assert noise_report(run()) == noise_report(run(), [run(seed) for seed in range(2, 6)])
    assert (noise_report(run()).verdict, noise_report(run()).reasons) == ("quiet", [])


def test_a_trial_whose_nodes_were_changed_by_hand_is_disturbed():
    changed = timed_record("numpy", 1.0, 1, noise=CALM, notes={"by hand: cut node-1": "done", "blas": "fast"})
    assert noise_report(changed).reasons == ["its nodes were changed by hand (cut node-1)"]


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        ({"steal_cores": 0.31, "other_cores": 0.35}, "the hypervisor gave 0.31 cores to other machines"),
        ({"other_cores": 1.2}, "other processes kept 1.2 cores busy"),
        ({"cpu_pressure": 0.55}, "something waited for a CPU in 55% of the time"),
        ({"memory_pressure": 0.07}, "something waited for memory in 7% of the time"),
        ({"io_pressure": 0.4}, "something waited for storage in 40% of the time"),
        ({"control_before": 150.0}, "the control kernel before it ran at 83% of its usual speed"),
        ({"control_after": 90.0}, "the control kernel after it ran at 50% of its usual speed"),
    ],
)
def test_each_disturbance_is_reported_with_its_figure(noise, reason):
    found = noise_report(run(**noise))
    assert (found.verdict, found.reasons) == ("disturbed", [reason])


def test_the_control_kernel_is_compared_with_the_studys_median():
    slow = {"control_before": 150.0, "control_after": 150.0}
    others = [run(seed) for seed in range(2, 6)]
    assert noise_report(run(**slow)).verdict == "quiet", "there is nothing to compare it with"
    assert len(noise_report(run(**slow), others).reasons) == 2
    elsewhere = [timed_record("numpy", 1.0, seed, noise=CALM, environment={"host": "fast"}) for seed in range(2, 6)]
    assert noise_report(run(**slow), elsewhere).verdict == "quiet", "runs on another machine are not comparable"


def test_workers_that_wait_for_each_other_are_no_disturbance():
    def spark(seed, pressure):
        return timed_record("spark", 1.0, seed, mode="sync", workers=2, noise={**CALM, "cpu_pressure": pressure})

    runs = [spark(seed, 0.45) for seed in range(1, 5)]
    assert noise_report(runs[0]).verdict == "quiet"
    outlier = spark(9, 0.8)
    assert noise_report(outlier, runs).reasons == ["something waited for a CPU in 80% of the time"]
    assert [each.verdict for each in noise_reports([*runs, outlier])] == ["quiet"] * 4 + ["disturbed"]


def test_the_number_of_disturbed_trials_is_reported():
    calm, busy = [run(seed) for seed in range(1, 4)], run(9, other_cores=1.2)
    assert disturbances(calm) == []
    assert disturbances([*calm, busy]) == [
        "1 of 4 trials was disturbed, such as numpy with seed 9: other processes kept 1.2 cores busy."
    ]


def test_without_samples_the_noise_is_unknown():
    assert noise_report(timed_record("numpy", 1.0, noise={"load_before": 0.1})).verdict == "unknown"
    assert noise_report(timed_record("numpy", 1.0)).verdict == "unknown"
    nulls = dict.fromkeys(CALM) | {"other_cores": 0.0}
    assert noise_report(timed_record("numpy", 1.0, noise=nulls)).verdict == "quiet"


@pytest.mark.cluster
def test_a_record_has_the_speed_of_the_control_kernel_before_and_after(tmp_path):
    path = study(tmp_path, "numpy")
    assert trainoff("run", path, "--out", tmp_path / "out").returncode == 0
    noise = only_record(tmp_path / "out")["noise"]
    assert noise["control_before"] > 0
    assert noise["control_after"] > 0
    assert trainoff("run", path, "--out", tmp_path / "none", TRAINOFF_CONTROL_S="0").returncode == 0
    noise = only_record(tmp_path / "none")["noise"]
    assert (noise["control_before"], noise["control_after"]) == (None, None)
    wrong = trainoff("run", path, "--out", tmp_path / "wrong", TRAINOFF_CONTROL_S="soon")
    assert wrong.returncode == 2
    assert "TRAINOFF_CONTROL_S=soon: this is no number of seconds" in wrong.stderr


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_an_invalid_length_of_the_control_kernel_is_an_error(monkeypatch, value):
    monkeypatch.setenv("TRAINOFF_CONTROL_S", value)
    with pytest.raises(TrainoffError, match="no number of seconds; the default is 1"):
        machine.control_seconds()


def test_the_measurement_after_a_trial_is_reused_before_the_next_for_a_while(monkeypatch):
    speeds, now = iter([1.0, 2.0, 3.0, 4.0]), [0.0]
    monkeypatch.setattr(machine, "speed", lambda cpu, length: next(speeds))
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: now[0]))
    kernel = ControlKernel()
    assert (kernel.before(0), kernel.after(0)) == (1.0, 2.0)
    now[0] = machine.FRESH_S - 1
    assert kernel.before(0) == 2.0
    now[0] = machine.FRESH_S
    assert kernel.before(0) == 3.0


def test_the_control_kernel_does_the_same_work_every_time():
    before = os.sched_getaffinity(0)
    numbers = machine._array(machine.SMALL).copy()
    assert machine.speed(min(before), 0.0) > 0
    assert (machine._array(machine.SMALL) == numbers).all()
    assert os.sched_getaffinity(0) == before
