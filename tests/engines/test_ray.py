"""Ray Train in real trials: kills of every process, exceptions in a worker, existing clusters."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helpers.running import (
    BEST,
    EVERY,
    assert_nothing_survives,
    assert_recovered,
    assert_targets_are_reached,
    environment,
    kill_choice,
    member,
    members,
    only_record,
    signal_after_checkpoint,
    study,
    survivors,
    trainoff,
    wait_until,
)
from trainoff.clusters.local import free_ports

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

EPOCHS = 20
ATTACH = """workers = 2
batch_size = 50
[cluster]
kind = "attach"
head = "{address}"
"""
TRAINER = "ray::RayTrainWorker"
PROGRAMS = {"worker": [TRAINER, "raylet", ""], "head": ["gcs_server", ""], "driver": [""]}
LOST = {"head": "head: the head of the Ray cluster is gone", "driver": "killed from outside (SIGKILL)"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder with a name so long that no socket could have it as its address")
    more = "batch_size = 50\nworkers = 2\nl2 = 0.001\ndashboard = true\n"
    done = trainoff("run", study(folder, "ray-torch", more=more), "--out", folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(folder) == []
    assert not list(folder.glob("out/tiny/.staging/*"))
    return only_record(folder / "out"), done


def test_it_is_exact(trained):
    record, _ = trained
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert record["samples_seen"] == 600


def test_the_record_has_figures_of_every_role(trained):
    record, _ = trained
    workers = {"worker-0", "worker-1"}
    assert workers | {"head", "driver"} <= record["cpu_s_by_role"].keys()
    assert workers <= record["network_bytes_by_role"].keys()
    for figure in ("computing_s", "communicating_s", "waiting_s"):
        assert record["breakdowns"][figure].keys() == workers
    assert record["counts"]["rounds"] == 12
    for phase in ("cluster_start", "ship", "compile", "train", "test"):
        assert record["phases_s"][phase] > 0


def test_the_terminal_shows_nothing_of_ray_but_the_dashboards_address(trained):
    _, done = trained
    assert done.stderr == ""
    assert "ray::" not in done.stdout
    assert "http://127.0.0.1:" in done.stdout


def run_and_kill(folder, role, program="", number=signal.SIGKILL, held_at=60, after=0.0, replaced=False):
    """Return the record of a training with a signal to a process, `after` seconds after the first checkpoint."""

    def find():
        first = member(folder, role)
        children = [each for each in first.children(recursive=True) if program and program in " ".join(each.cmdline())]
        return children[0] if program else first

    return signal_after_checkpoint(folder, "ray-torch", find, number, "sync", held_at, after, replaced)


def test_ray_train_resumes_from_the_checkpoint(tmp_path):
    record = run_and_kill(tmp_path, "worker-1", TRAINER)
    assert_recovered(record, EPOCHS)
    assert record["equivalence"]["verdict"] == "exact"


@pytest.mark.soak
def test_a_killed_head_is_named_in_the_record(tmp_path):
    record = run_and_kill(tmp_path, "head", "gcs_server")
    assert record["status"] == "crashed"
    assert record["reason"] == "head: the head of the Ray cluster is gone"


@pytest.mark.soak
def test_a_killed_driver_takes_all_processes_with_it(tmp_path):
    record = run_and_kill(tmp_path, "driver")
    assert record["status"] == "crashed"
    assert "killed from outside (SIGKILL)" in record["reason"]


@pytest.mark.soak
def test_an_exception_in_a_worker_is_reported_at_once_with_its_message(tmp_path):
    assert trainoff("run", study(tmp_path, "slipper", more="workers = 2"), "--out", tmp_path / "out").returncode == 1
    record = only_record(tmp_path / "out")
    assert "LookupError: no such parameter" in record["reason"]
    assert record["reason"].startswith("worker-")
    assert "make_update" in record["traceback"]
    assert survivors(tmp_path) == []


def test_attaching_where_no_cluster_answers_is_an_error(tmp_path):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # it does not listen, and nothing else can take its port
        port = reserved.getsockname()[1]
        path = study(tmp_path, "ray-torch", more=ATTACH.format(address=f"127.0.0.1:{port}"))
        trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["reason"].startswith(f"no Ray cluster answers at 127.0.0.1:{port}")


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("victim", ["worker", "head", "driver"])
def test_kills_at_random_moments_leave_no_process_and_lose_no_step(tmp_path, victim, number):
    choice = kill_choice(f"{victim} {number}")
    role = choice.choice(["worker-0", "worker-1"]) if victim == "worker" else victim
    program = choice.choice(PROGRAMS[victim])
    # Without its node a worker trains on for seconds, long enough to reach the end: so it is held until it is replaced.
    replaced = victim == "worker"
    moment = {"held_at": choice.randrange(51, 110), "after": choice.uniform(0, 0.1)}
    record = run_and_kill(tmp_path, role, program, replaced=replaced, **moment)
    if victim == "worker":
        assert_recovered(record, EPOCHS, redone=EVERY)
        assert record["counts"].get("nodes_replaced", 0) == (program != TRAINER)
    else:
        assert record["status"] == "crashed"
        assert LOST[victim] in record["reason"]


@pytest.mark.soak
def test_a_stuck_worker_is_detected(tmp_path):
    record = run_and_kill(tmp_path, "worker-1", TRAINER, signal.SIGSTOP)
    assert_recovered(record, EPOCHS)
    assert record["counts"]["detection_s"] > 9


@pytest.fixture
def existing():
    """A Ray cluster that belongs to no trial; yields its address."""
    folder, (port,) = Path(tempfile.mkdtemp(dir="/tmp")), free_ports(["0.0.0.0"])
    start = ["start", "--head", "--block", "--num-cpus", "2", "--port", port, "--temp-dir", folder]
    options = ["--disable-usage-stats", "--include-dashboard", "false"]
    log = folder / "log.txt"
    with log.open("w") as sink:
        argv = [sys.executable, "-m", "ray.scripts.scripts", *map(str, start), *options]
        head = subprocess.Popen(argv, env=environment(), stdout=sink, stderr=sink, start_new_session=True)
    wait_until(lambda: "Ray runtime started" in log.read_text(), head)
    yield log.read_text().split("--address='")[1].split("'")[0]
    assert head.poll() is None  # the trial must not stop it
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
def test_an_existing_cluster_is_used_and_keeps_running(tmp_path, existing):
    path = study(tmp_path, "ray-torch", more=ATTACH.format(address=existing))
    done = trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert done.returncode == 0, record["reason"]
    assert record["equivalence"]["verdict"] == "exact"
    assert members(tmp_path, "head") == []
    assert_nothing_survives(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("workload", BEST)
def test_every_number_of_workers_reaches_the_target(tmp_path, workload):
    assert_targets_are_reached(tmp_path, "ray-torch", workload)
