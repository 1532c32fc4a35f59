"""The engines on Dask in real trials: clusters that a trial starts, kills, memory limits, existing clusters."""

import re
import time

import pytest
from distributed import Security

from helpers.running import (
    LONG,
    assert_nothing_listens_outside,
    kill_choice,
    members,
    only_record,
    records,
    run_and_signal,
    study,
    survivors,
    trainoff,
)
from trainoff.clusters import Cluster
from trainoff.clusters.dask import DaskCluster

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

BITS = 18
CASES = f"""
engines = ["dask-average", "dask-sklearn"]
[workload.clicks]
data = "clicks:rows=6000,bits={BITS}"
model = "logreg"
metric = "error"
[params]
epochs = 3
optimizer = "sgd"
batch_size = 60
[cluster]
cores = 1
[[case]]
workload = "digits-mlp"
mode = "sync"
workers = 2
hidden = [6000]
train_rows = 300
[[case]]
workload = "digits-mlp"
mode = "local"
workers = 3
tau = 4
protocol = "tls"
[[case]]
workload = "digits-mlp"
workers = 2
protocol = "inproc"
[[case]]
workload = "clicks"
mode = "sync"
workers = 2
epochs = 1
learning_rate = 0.1
[engine.dask-sklearn]
candidates = 3
"""
SEARCH = 'mode = "search"\nworkers = 2\ncandidates = 3\ndashboard = true'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with spaces in its name, as users have them."""
    return tmp_path_factory.mktemp("dask and more")


@pytest.fixture(scope="module")
def trained(folder):
    """The records of both engines in all modes, by engine, protocol and workload."""
    path = folder / "cases.toml"
    path.write_text(CASES)
    done = trainoff("run", path, "--out", folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(folder) == []
    assert "distributed." not in done.stdout + done.stderr, "Dask's messages belong in the log"
    return {(each["engine"], each["params"]["protocol"], each["workload"]): each for each in records(folder / "out")}


def test_all_cases_train(trained):
    assert len(trained) == 8
    for record in trained.values():
        assert record["status"] == "ok", record["reason"]
        for phase in ("import", "cluster_start", "data_load", "ship", "train", "test", "teardown"):
            assert record["phases_s"][phase] > 0, phase


def test_every_process_has_its_role(trained):
    record = trained["dask-average", "tls", "digits-mlp"]
    assert {"driver", "scheduler", "worker-0", "worker-1", "worker-2"} <= record["cpu_s_by_role"].keys()
    inside = trained["dask-average", "inproc", "digits-mlp"]
    assert inside["cpu_s_by_role"].keys() <= {"driver", "unattributed"}


def test_one_step_per_round_is_exact(trained):
    assert trained["dask-average", "tcp", "digits-mlp"]["equivalence"]["verdict"] == "exact"
    assert trained["dask-average", "tcp", "clicks"]["equivalence"]["verdict"] in ("exact", "within tolerance")


def test_batches_from_a_workers_own_rows_are_different_by_design(trained):
    found = trained["dask-sklearn", "tcp", "digits-mlp"]["equivalence"]
    assert found["verdict"] == "different by design"
    assert found["reason"] == "every worker draws its batches from its own part of the rows"
    assert trained["dask-sklearn", "tls", "digits-mlp"]["test_accuracy"] > 0.8


@pytest.mark.parametrize("engine", ["dask-average", "dask-sklearn"])
def test_after_loading_only_weights_are_transferred(trained, engine):
    record = trained[engine, "tcp", "digits-mlp"]
    counts = record["counts"]
    assert 1 <= counts["bytes_per_round"] / counts["least_bytes_per_round"] <= 1.1
    weights = 4 * record["model"]["parameters"]
    assert record["network_bytes_by_phase"]["ship"] <= 2 * 2 * weights + 200_000, "the job twice and no rows"


@pytest.mark.parametrize("engine", ["dask-average", "dask-sklearn"])
def test_only_changed_sparse_weights_are_transferred(trained, engine):
    record = trained[engine, "tcp", "clicks"]
    assert record["counts"]["bytes_per_round"] < 2 * 2 * 4 * 2**BITS / 20


def test_the_timeline_has_every_workers_tasks_in_order(trained):
    record = trained["dask-average", "tcp", "digits-mlp"]
    assert record["timeline"].keys() == {"worker-0", "worker-1"}
    for tasks in record["timeline"].values():
        assert len(tasks) == record["counts"]["rounds"] == 15
        flat = [moment for task in tasks for moment in task]
        assert flat == sorted(flat)
        assert 0 <= flat[0] < flat[-1] <= record["train_s"] + record["pause_s"]
    assert record["counts"]["python_gc_s"] >= 0


def test_a_search_runs_with_a_dashboard(tmp_path):
    done = trainoff("run", study(tmp_path, "dask-sklearn", more=SEARCH), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["counts"]["candidates"] == 3
    assert record["samples_seen"] == 3 * 270 * 2
    assert re.search(r"dask: http://127.0.0.1:\d+", done.stdout + done.stderr)


def test_dask_torch_is_exact_on_two_workers(tmp_path):
    more = 'workers = 2\nbatch_size = 70\nprotocol = "tls"'
    done = trainoff("run", study(tmp_path, "dask-torch", more=more), "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["equivalence"]["verdict"] == "exact"
    assert record["breakdowns"]["communicating_s"].keys() == {"worker-0", "worker-1"}


@pytest.mark.soak
def test_the_training_fails_when_one_member_of_the_process_group_dies(tmp_path):
    record = run_and_kill(tmp_path, "worker-1", engine="held-dask-torch")
    assert (record["status"], record["phase"]) == ("crashed", "train")
    assert record["reason"] == "worker-1: the worker ended with code -9"


def run_and_kill(folder, victim, engine="held-dask-average"):
    """Return the record of a training in which a process was killed."""
    path = study(folder, engine, more=LONG)

    def choose():
        (found, *_) = members(folder, victim)
        assert_nothing_listens_outside(found)
        return found

    return run_and_signal(folder, path, choose)


def check_record(record, victim):
    if victim == "worker-1":
        assert record["status"] == "ok", record["reason"]
        assert record["counts"]["workers_lost"] == 1
        assert record["counts"]["recovery_s"] > 0
        assert record["equivalence"]["verdict"] == "exact", "plain gradient descent loses nothing"
    elif victim == "scheduler":
        assert record["status"] == "crashed"
        assert record["reason"] == "scheduler: Dask's scheduler ended with code -9"
    else:
        assert record["status"] == "crashed"
        assert record["unfinished"]


@pytest.mark.parametrize("victim", ["worker-1", "scheduler", "driver"])
def test_the_record_after_a_process_is_killed(tmp_path, victim):
    check_record(run_and_kill(tmp_path, victim), victim)


def test_training_recovers_when_both_workers_are_lost_at_once(tmp_path):
    path = study(tmp_path, "held-dask-average", more=LONG)

    def choose():
        members(tmp_path, "worker-0")[0].kill()
        return members(tmp_path, "worker-1")[0]

    record = run_and_signal(tmp_path, path, choose)
    assert record["status"] == "ok", record["reason"]
    assert record["counts"]["workers_lost"] == 2
    assert record["equivalence"]["verdict"] == "exact"


def test_without_a_network_namespace_everything_listens_on_loopback_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINOFF_ISOLATION", "process-group")
    path = study(tmp_path, "held-dask-average", more=LONG)
    addresses = []

    def choose():
        for role in ("scheduler", "worker-0", "worker-1", "driver"):
            for each in members(tmp_path, role):
                addresses.extend(link.laddr.ip for link in each.net_connections("inet") if link.status == "LISTEN")
        return members(tmp_path, "driver")[0]

    run_and_signal(tmp_path, path, choose)
    assert len(addresses) >= 4
    assert set(addresses) == {"127.0.0.1"}


@pytest.mark.soak
@pytest.mark.parametrize("attempt", range(10))
@pytest.mark.parametrize("victim", ["worker-1", "scheduler", "driver"])
def test_a_kill_at_a_random_moment(tmp_path, victim, attempt):
    """The moment counts from the start of the victim."""
    moment = kill_choice(f"{victim} {attempt}").uniform(0, 12)
    start = []

    def is_due():
        start.append(time.monotonic()) if members(tmp_path, victim) else None
        return start and time.monotonic() - start[0] > moment and members(tmp_path, victim)

    path = study(tmp_path, "held-dask-average", more=LONG)
    record = run_and_signal(tmp_path, path, lambda: members(tmp_path, victim)[0], held_at=110, begun=is_due)
    assert record["status"] in ("ok", "crashed", "start-failed")
    if record["status"] != "ok":
        assert victim in record["reason"] or record["unfinished"], record["reason"]
    again = trainoff("run", study(tmp_path, "dask-average", more="workers = 2", name="after"), "--out", tmp_path / "x")
    assert again.returncode == 0, again.stderr


def test_the_first_traceback_of_a_worker_reaches_the_record(tmp_path):
    done = trainoff("run", study(tmp_path, "blunderer", more="workers = 2\nbatch_size = 30"), "--out", tmp_path / "out")
    assert done.returncode == 1
    record = only_record(tmp_path / "out")
    assert (record["status"], record["phase"]) == ("crashed", "train")
    assert record["reason"] == "worker-0: LookupError: the third step is missing"
    assert "in blunder" in record["traceback"]


def test_a_worker_over_its_memory_limit_ends_the_trial_as_out_of_memory(tmp_path):
    more = "workers = 2\nbatch_size = 10\n[cluster]\nmemory_gb = 0.6"
    done = trainoff("run", study(tmp_path, "glutton", more=more), "--out", tmp_path / "out")
    assert done.returncode == 1
    record = only_record(tmp_path / "out")
    assert record["status"] == "out-of-memory"
    assert re.fullmatch(r"worker-[01] used 0\.[6-9]\d GiB of its 0\.6 GiB", record["reason"])
    assert "workers_lost" not in record["counts"]


ATTACH = """workers = {workers}
optimizer = "sgd"
mode = "sync"
[cluster]
kind = "attach"
scheduler = "{address}"
"""


def test_an_existing_cluster_is_used_by_its_address(tmp_path):
    with Cluster(2, tmp_path) as cluster:
        address = DaskCluster(cluster, tmp_path, 1).start()
        path = study(tmp_path, "dask-average", more=ATTACH.format(workers=2, address=address))
        done = trainoff("run", path, "--out", tmp_path / "out")
        record = only_record(tmp_path / "out")
        assert done.returncode == 0, record["reason"]
        assert record["equivalence"]["verdict"] == "exact"
        assert record["notes"]["workers"].startswith("2 workers of 1 threads on ")
        assert record["isolation"]["own_network"] is False
        assert "worker-0" not in record["cpu_s_by_role"]
        path = study(tmp_path, "dask-average", more=ATTACH.format(workers=3, address=address), name="more")
        trainoff("run", path, "--out", tmp_path / "more")
        reason = only_record(tmp_path / "more")["reason"]
        assert reason.startswith("the cluster has 2 workers of at least 1 threads, and the trial needs 3")
    trainoff("run", path, "--out", tmp_path / "gone", "--set", "workers=2")
    reason = only_record(tmp_path / "gone")["reason"]
    assert reason.startswith(f"no Dask scheduler answers at {address}")


def test_an_existing_cluster_with_tls_is_used_with_a_certificate(tmp_path):
    security = Security.temporary()
    texts = {"ca_file": security.tls_ca_file, "cert": security.tls_scheduler_cert, "key": security.tls_scheduler_key}
    files = {}
    for name, text in texts.items():
        files[name] = str(tmp_path / f"{name}.pem")
        (tmp_path / f"{name}.pem").write_text(text)
    certificate = "[cluster.dask]\n" + "".join(f'{name} = "{path}"\n' for name, path in files.items())
    with Cluster(1, tmp_path) as cluster:
        options = ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
        address = DaskCluster(cluster, tmp_path, 1, "tls", options).start()
        more = ATTACH.format(workers=1, address=address)
        done = trainoff("run", study(tmp_path, "dask-average", more=more + certificate), "--out", tmp_path / "out")
        assert done.returncode == 0, only_record(tmp_path / "out")["reason"]
        trainoff("run", study(tmp_path, "dask-average", more=more, name="bare"), "--out", tmp_path / "bare")
    assert only_record(tmp_path / "bare")["reason"].startswith(f"no Dask scheduler answers at {address}")
