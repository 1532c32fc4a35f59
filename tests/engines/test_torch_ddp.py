"""torch-ddp in real trials: both modes, kills of every process, exceptions in a worker."""

import signal

import pytest

from helpers.running import (
    BEST,
    EVERY,
    assert_recovered,
    assert_targets_are_reached,
    kill_choice,
    member,
    only_record,
    records,
    signal_after_checkpoint,
    study,
    survivors,
    trainoff,
)

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

MODES = """batch_size = 50
hidden = [40]
[[case]]
mode = "sync"
workers = 1
[[case]]
mode = "sync"
workers = 3
optimizer = "adam"
learning_rate = 0.01
l2 = 0.001
[[case]]
mode = "local"
tau = 4
workers = 2
[[case]]
mode = "local"
tau = 1
workers = 2
optimizer = "sgd"
"""
EPOCHS = 20
LOST = {"agent": "agent: torchrun was killed by SIGKILL", "driver": "killed from outside (SIGKILL)"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, spare = tmp_path_factory.mktemp("torchrun and more"), tmp_path_factory.mktemp("spare")
    done = trainoff("run", study(folder, "torch-ddp", more=MODES), "--out", folder / "out", TMPDIR=str(spare))
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(folder) == []
    assert list(spare.iterdir()) == [], "torchrun's files are removed with the trial"
    return {(each["mode"], each["workers"], each["params"]["tau"]): each for each in records(folder / "out")}


@pytest.mark.parametrize("key", [("sync", 1, 1), ("sync", 3, 1), ("local", 2, 1)])
def test_workers_that_average_at_every_step_are_exact(trained, key):
    record = trained[key]
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert record["samples_seen"] == 600


def test_local_steps_are_different_by_design_and_end_with_their_round(trained):
    record = trained["local", 2, 4]
    assert record["status"] == "ok", record["reason"]
    assert "makes 4 steps of its own" in record["equivalence"]["reason"]
    assert record["counts"]["rounds"] == 4  # six steps an epoch, and a round ends with its epoch


def test_the_record_has_figures_of_every_role(trained):
    record = trained["sync", 3, 1]
    workers = {f"worker-{number}" for number in range(3)}
    assert workers | {"agent", "driver"} <= record["cpu_s_by_role"].keys()
    assert workers <= record["network_bytes_by_role"].keys()
    for figure in ("computing_s", "communicating_s", "waiting_s"):
        assert record["breakdowns"][figure].keys() == workers
    assert record["counts"]["rounds"] == 12
    assert record["counts"]["bytes_per_round"] > record["counts"]["least_bytes_per_round"] > 0
    assert record["orphans"] == 0


def run_and_kill(folder, role, number=signal.SIGKILL, mode="sync", held_at=60, after=0.0):
    """Return the record of a training with a signal to a process, `after` seconds after the first checkpoint."""
    return signal_after_checkpoint(folder, "torch-ddp", lambda: member(folder, role), number, mode, held_at, after)


def test_torchrun_resumes_from_the_checkpoint(tmp_path):
    record = run_and_kill(tmp_path, "worker-1")
    assert_recovered(record, EPOCHS)
    assert record["counts"]["detection_s"] > 0
    assert record["equivalence"]["verdict"] == "exact"


def test_a_killed_torchrun_is_named_in_the_record(tmp_path):
    record = run_and_kill(tmp_path, "agent")
    assert record["status"] == "crashed"
    assert record["reason"] == "agent: torchrun was killed by SIGKILL"


@pytest.mark.soak  # test_dask.py kills a driver in every run
def test_a_killed_driver_takes_all_processes_with_it(tmp_path):
    record = run_and_kill(tmp_path, "driver")
    assert record["status"] == "crashed"
    assert "killed from outside (SIGKILL)" in record["reason"]


def test_an_exception_in_a_worker_is_reported_at_once_with_its_message(tmp_path):
    done = trainoff("run", study(tmp_path, "tripper", more="workers = 2"), "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    record = only_record(tmp_path / "out")
    assert "LookupError: no such parameter" in record["reason"]
    assert record["reason"].startswith("worker-")
    assert "make_update" in record["traceback"]
    assert survivors(tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("victim", ["worker", "agent", "driver"])
def test_kills_at_random_moments_leave_no_process_and_lose_no_step(tmp_path, victim, number):
    choice = kill_choice(f"{victim} {number}")
    role = choice.choice(["worker-0", "worker-1"]) if victim == "worker" else victim
    mode = choice.choice(["sync", "local"])
    held_at = choice.randrange(55, 110)  # in the mode local the first checkpoint is written after step 54
    record = run_and_kill(tmp_path, role, mode=mode, held_at=held_at, after=choice.uniform(0, 0.1))
    if victim == "worker":
        assert_recovered(record, EPOCHS, redone=EVERY)
    else:
        assert record["status"] == "crashed"
        assert LOST[victim] in record["reason"]


@pytest.mark.soak
def test_a_stuck_worker_is_detected(tmp_path):
    record = run_and_kill(tmp_path, "worker-1", signal.SIGSTOP)
    assert_recovered(record, EPOCHS)
    assert record["counts"]["detection_s"] > 9


@pytest.mark.soak
def test_workers_die_with_torchrun_without_namespaces(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_ISOLATION", "process-group")
    record = run_and_kill(tmp_path, "agent")
    assert record["reason"] == "agent: torchrun was killed by SIGKILL"


@pytest.mark.soak
@pytest.mark.parametrize("workload", BEST)
def test_every_number_of_workers_reaches_the_target(tmp_path, workload):
    assert_targets_are_reached(tmp_path, "torch-ddp", workload)
