"""Faults in real trials: a worker is killed, paused or slowed down, and the record has the impact."""

import json

import pytest

from helpers.running import assert_nothing_survives, records, study, trainoff

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

LONG = """workers = 2
batch_size = 50
hidden = [100]
snapshot_every = 100000
"""
OF_TORCH = """checkpoint_every = 50
[grid]
epochs = [40]
fault = [{action = "kill-process"}, {action = "pause", for_s = 4, at = "step 100"}]
"""
OF_DASK = """tau = 5
[grid]
epochs = [40]
fault = [{action = "kill-process", node = 0}, {action = "slow", share = 0.5, at = "0.5 s"}]
"""
OF_NODES = """tau = 5
fault = {action = "kill-node"}
[cluster]
kind = "lab"
cores = 0.5
memory_gb = 1
nodes = 2
[grid]
epochs = [20]
"""


def run_with_faults(folder, engine, more, held_at):
    """Run a study and return its records by the fault's action; no process of its trials may be left.

    From a step on the training is held until the fault was injected, so that it cannot end before.
    """
    path = study(folder, f"held-{engine}", more=more)
    done = trainoff("run", path, "--out", folder / "out", HELD_AT=str(held_at))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_survives(folder)
    return {record["fault"]["action"]: record for record in records(folder / "out")}


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory):
    return run_with_faults(tmp_path_factory.mktemp("torch"), "torch-ddp", LONG + OF_TORCH, 105)


@pytest.fixture(scope="module")
def of_dask(tmp_path_factory):
    return run_with_faults(tmp_path_factory.mktemp("dask"), "dask-average", LONG + OF_DASK, 75)


def test_a_killed_worker_is_detected_and_the_training_resumes_from_the_checkpoint(of_torch):
    record = of_torch["kill-process"]
    found = record["fault"]
    assert (found["state"], found["node"], found["processes"]) == ("recovered", 1, 1)
    assert found["step"] >= 0.3 * 240
    assert 0 < found["detected_s"] < found["recovered_s"]
    assert found["samples_redone"] == 50 * record["counts"]["steps_redone"]
    assert record["counts"]["restarts"] == 1
    assert record["samples_seen"] == 40 * 300
    assert record["equivalence"]["verdict"] == "exact"


def test_a_pause_costs_only_time(of_torch):
    record = of_torch["pause"]
    found = record["fault"]
    assert (found["state"], found["detected_s"], found["samples_redone"]) == ("unharmed", None, 0)
    assert found["step"] >= 100
    assert found["healed_s"] >= 4, "not too early"
    assert found["longest_gap_s"] > 1, "no worker could make a step"
    assert "restarts" not in record["counts"]


def test_a_new_worker_repeats_only_its_part_of_the_round(of_dask):
    record = of_dask["kill-process"]
    found = record["fault"]
    assert (found["state"], found["node"]) == ("recovered", 0)
    assert record["counts"]["workers_lost"] == 1
    assert found["samples_redone"] <= 5 * 50 / 2
    assert record["samples_seen"] == 40 * 300


def test_a_slow_worker_stays_slow_until_the_training_ends(of_dask):
    record = of_dask["slow"]
    found = record["fault"]
    assert (found["state"], found["share"]) == ("unharmed", 0.5)
    assert found["at_s"] >= 0.5
    assert found["at_s"] + found["healed_s"] >= record["train_s"] - 0.01, "until the end"


@pytest.mark.lab
def test_the_worker_of_a_killed_node_starts_on_another(tmp_path):
    record = run_with_faults(tmp_path, "dask-average", LONG.replace("workers = 2\n", "") + OF_NODES, 40)["kill-node"]
    assert record["fault"]["state"] == "recovered"
    assert record["counts"]["workers_lost"] == 1
    assert record["samples_seen"] == 20 * 300


def test_a_fault_that_needs_a_lab_is_refused_before_the_trial_starts(tmp_path):
    path = study(tmp_path, "dask-average", more="workers = 2\nfault = {action = 'cut'}")
    done = trainoff("run", path, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert (record["status"], record["fault"]) == ("unsupported", {})
    assert record["reason"].endswith('use kind = "lab"')
