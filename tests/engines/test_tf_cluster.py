"""tf-allreduce and tf-ps in real trials: all modes, kills, slow workers, sparse rows."""

import json
import signal
import subprocess
import time

import numpy as np
import pytest

from helpers.running import (
    CHECKPOINTED,
    HANGS_S,
    REDONE,
    command,
    environment,
    is_held,
    kill_choice,
    members,
    only_record,
    records,
    run_and_signal,
    signal_after_checkpoint,
    study,
    survivors,
    trainoff,
    wait_until,
)
from trainoff import data

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

PROGRAMS = "trainoff.engines.tf_cluster"

MODES = """batch_size = 50
hidden = [40]
[[case]]
mode = "sync"
workers = 3
ps = 2
[[case]]
mode = "model-parallel"
workers = 3
ps = 2
[[case]]
mode = "async"
workers = 1
[[case]]
mode = "async"
workers = 3
max_staleness = 2
"""
BITS = 20
SUSPENDED_S = 1.0
OTHER_MODELS = f"""
engines = [{{engines}}]
[workload.small-cnn]
data = "digits"
model = "cnn"
[workload.clicks]
data = "clicks:rows=8000,bits={BITS}"
model = "logreg"
metric = "error"
[params]
epochs = 1
batch_size = 100
channels = [4]
kernel = 3
hidden = [20]
learning_rate = 0.1
[[case]]
workload = "clicks"
mode = "sync"
workers = 2
"""
MORE_OF_PS = """[[case]]
workload = "small-cnn"
mode = "model-parallel"
workers = 2
[[case]]
workload = "clicks"
mode = "async"
workers = 2
[[case]]
workload = "clicks"
mode = "sync"
workers = 3
backup_workers = 1
"""


def run(path, out):
    done = trainoff("run", path, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return [record for record in records(out) if record["status"] != "unsupported"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorflow and more")
    found = run(study(folder, "tf-ps", "tf-allreduce", more=MODES), folder / "out")
    assert survivors(folder) == []
    return {(record["engine"], record["mode"], record["workers"]): record for record in found}


CERTIFIED = [("tf-allreduce", "sync", 3), ("tf-ps", "sync", 3), ("tf-ps", "model-parallel", 3), ("tf-ps", "async", 1)]


@pytest.mark.parametrize("key", CERTIFIED)
def test_synchronous_modes_and_one_worker_are_exact(trained, key):
    record = trained[key]
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert record["samples_seen"] == 600


@pytest.mark.parametrize("key", CERTIFIED)
def test_the_record_has_figures_of_every_role(trained, key):
    record = trained[key]
    workers = {f"worker-{number}" for number in range(key[2])}
    servers = set() if key[0] == "tf-allreduce" else {"ps-0", "coordinator"}
    assert workers | servers | {"driver"} <= record["cpu_s_by_role"].keys()
    assert workers | servers <= record["network_bytes_by_role"].keys()
    for figure in ("computing_s", "waiting_s"):
        assert record["breakdowns"][figure].keys() == workers
    assert record["training"]["cpu_share"] > 0
    for phase in ("cluster_start", "compile", "train", "test"):
        assert record["phases_s"][phase] > 0


def test_no_gradient_is_staler_than_allowed(trained):
    record = trained["tf-ps", "async", 3]
    assert record["equivalence"]["verdict"] == "different by design"
    staleness = {int(missed): count for missed, count in record["breakdowns"]["staleness"].items()}
    assert sum(staleness.values()) == record["steps"] == 12
    assert min(staleness) >= 0
    assert max(staleness) <= 2
    assert sum(record["breakdowns"]["updates"].values()) == 12


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("models"), []
    for engine, more in {"tf-ps": MORE_OF_PS, "tf-allreduce": ""}.items():
        path = folder / f"{engine}.toml"
        path.write_text(OTHER_MODELS.format(engines=f'"{engine}"') + more)
        found += run(path, folder / engine)
    return {(each["workload"], each["engine"], each["mode"], each["workers"]): each for each in found}


def test_layers_of_a_cnn_on_two_workers_are_exact(others):
    assert others["small-cnn", "tf-ps", "model-parallel", 2]["equivalence"]["verdict"] == "exact"


@pytest.mark.parametrize(("engine", "mode"), [("tf-ps", "sync"), ("tf-ps", "async"), ("tf-allreduce", "sync")])
def test_only_the_weights_of_the_batchs_features_are_transferred(others, engine, mode):
    record = others["clicks", engine, mode, 2]
    if mode == "sync":
        assert record["equivalence"]["verdict"] == "exact"
    x = data.load(f"clicks:rows=8000,bits={BITS}").x_train
    touched = np.mean([len(np.unique(x[first : first + 100].compact().columns)) for first in range(0, 1000, 100)])
    least = 12 * touched  # a number, a weight and a gradient of each
    bytes_per_step = record["network_bytes_by_phase"]["train"] / record["steps"]
    assert least < bytes_per_step < 3 * least
    assert bytes_per_step < 2 * 4 * 2**BITS / 50


def test_the_slowest_are_left_out_of_a_step(others):
    record = others["clicks", "tf-ps", "sync", 3]
    assert record["equivalence"]["verdict"] == "different by design"
    assert record["counts"]["gradients_dropped"] > 0


def run_and_kill(folder, engine, mode, victim, number=signal.SIGKILL, held_at=60, after=0.0):
    """Return the record of a training with a signal to a process, `after` seconds after the first checkpoint."""

    def find():
        (found,) = members(folder, victim, PROGRAMS)
        return found

    return signal_after_checkpoint(folder, engine, find, number, mode, held_at, after)


def test_asynchronous_training_continues_without_a_lost_worker(tmp_path):
    record = run_and_kill(tmp_path, "tf-ps", "async", "worker-1")
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["workers_lost"] == 1
    assert record["counts"]["detection_s"] > 0
    assert "restarts" not in record["counts"]
    assert record["samples_seen"] == 20 * 300


@pytest.mark.parametrize(
    ("engine", "victim"), [("tf-allreduce", "worker-1"), pytest.param("tf-ps", "ps-0", marks=pytest.mark.soak)]
)
def test_training_resumes_from_the_checkpoint(tmp_path, engine, victim):
    record = run_and_kill(tmp_path, engine, "sync", victim)
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["restarts"] == 1
    assert 0 <= record["counts"]["steps_redone"] <= REDONE
    assert 0 < record["counts"]["recovery_s"] < record["train_s"]
    assert record["equivalence"]["verdict"] == "exact"
    assert record["samples_seen"] == 20 * 300


def run_with_suspended_worker(folder, mode):
    """Return the record of a training whose second worker was suspended.

    In async this lasts until the other has made ten updates; in sync for SUSPENDED_S after it has done its part of a
    step, and has to wait.
    """
    held, out = folder / "held", folder / "out"
    held.mkdir()
    path = study(folder, "held-tf-ps", more=CHECKPOINTED.format(mode=mode).replace("every = 50\n", "every = 1000\n"))
    argv = command("run", path, "--out", out, "--set", f"stall_s={4 * HANGS_S}")
    run = subprocess.Popen(argv, env=environment(HELD=str(held), HELD_AT="30"), stdout=subprocess.DEVNULL)
    wait_until(lambda: is_held(folder), run)
    (worker,) = members(folder, "worker-1", PROGRAMS)
    worker.suspend()
    (held / "released").touch()
    if mode == "sync":
        wait_until((held / "done-0").exists, run)
        time.sleep(SUSPENDED_S)  # the other worker waits for so long
    else:
        wait_until(lambda: samples_seen(out) >= 40 * 50, run)
    worker.resume()
    assert run.wait(HANGS_S) == 0
    return only_record(out)


def samples_seen(out):
    """Return how many samples a running training has reported."""
    (events,) = out.glob("tiny/.staging/*/events.jsonl")
    reported = [json.loads(line) for line in events.read_text().splitlines()]
    return max((event["samples_seen"] for event in reported if event["kind"] == "progress"), default=0)


@pytest.mark.soak
def test_a_slow_worker_is_waited_for_in_sync(tmp_path):
    waited = run_with_suspended_worker(tmp_path, "sync")["breakdowns"]["waiting_s"]
    assert waited["worker-0"] > SUSPENDED_S


def test_a_slow_worker_makes_async_stale(tmp_path):
    record = run_with_suspended_worker(tmp_path, "async")
    assert max(map(int, record["breakdowns"]["staleness"])) >= 8
    assert sum(record["breakdowns"]["updates"].values()) == 20 * 6


def test_impossible_settings_are_refused_with_a_reason(tmp_path):
    for more, reason in {
        'mode = "sync"\nworkers = 2\nbackup_workers = 2': "leaves none of 2 workers",
        "workers = 2\nfault = { action = 'slow', node = 2 }": "the fault is for node 2, but the nodes are 0 to 1",
        "stop = { tol = 0.1, patience = 3 }": "leave `stop` out",
    }.items():
        out = tmp_path / str(abs(hash(more)))
        done = trainoff("run", study(tmp_path, "tf-ps", more=more), "--out", out)
        assert done.returncode == 0
        assert reason in only_record(out)["reason"]


VICTIMS = ("worker-0", "worker-1", "ps-0", "coordinator")


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_kills_at_random_moments_leave_no_process_and_lose_no_step(tmp_path, number):
    choice = kill_choice(str(number))
    mode, victim = choice.choice(["async", "sync", "model-parallel"]), choice.choice(VICTIMS)
    held_at, after = choice.randrange(51, 110), choice.uniform(0, 0.5)
    record = run_and_kill(tmp_path, "tf-ps", mode, victim, held_at=held_at, after=after)
    assert record["status"] == "ok", record["reason"]
    assert record["samples_seen"] == 20 * 300
    without = mode == "async" and victim.startswith("worker")
    assert record["counts"]["workers_lost" if without else "restarts"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_lost_before_the_first_step_is_replaced(tmp_path, victim):
    path = study(tmp_path, "held-tf-ps", more=CHECKPOINTED.format(mode="async"))

    def have_started():
        return members(tmp_path, "coordinator", PROGRAMS) and members(tmp_path, victim, PROGRAMS)

    record = run_and_signal(
        tmp_path, path, lambda: members(tmp_path, victim, PROGRAMS)[0], held_at=1, begun=have_started
    )
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["restarts"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_stuck_worker_is_detected(tmp_path, mode):
    record = run_and_kill(tmp_path, "tf-ps", mode, "worker-1", signal.SIGSTOP)
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["detection_s"] > 9
