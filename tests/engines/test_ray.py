"""A Ray cluster for real: Ray Train on it, kills of every process, mistakes of a worker, clusters of others."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.running import (
    BEST,
    HANGS_S,
    assert_nothing_survives,
    assert_recovered,
    assert_targets_are_reached,
    environment,
    is_held_after_checkpoint,
    kill_choice,
    member,
    members,
    only_record,
    run_and_signal,
    study,
    survivors,
    trainoff,
)
from trainoff.clusters.local import free_ports

pytestmark = [pytest.mark.namespace, pytest.mark.cluster]

LONG = """workers = 2
batch_size = 50
hidden = [400]
snapshot_every = 100000
checkpoint_every = 50
[grid]
epochs = [20]
"""
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


def test_it_is_the_reference(trained):
    record, _ = trained
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert record["samples_seen"] == 600


def test_the_record_tells_who_did_what(trained):
    record, _ = trained
    workers = {"worker-0", "worker-1"}
    assert workers | {"head", "driver"} <= record["cpu_s_by_role"].keys()
    assert workers <= record["network_bytes_by_role"].keys()
    for what in ("computing_s", "communicating_s", "waiting_s"):
        assert record["breakdowns"][what].keys() == workers
    assert record["counts"]["rounds"] == 12
    for phase in ("cluster_start", "ship", "compile", "train", "test"):
        assert record["phases_s"][phase] > 0


def test_ray_says_nothing_on_the_terminal_but_where_its_dashboard_is(trained):
    _, done = trained
    assert done.stderr == ""
    assert "ray::" not in done.stdout
    assert "http://127.0.0.1:" in done.stdout


def disturb(folder, role, program="", number=signal.SIGKILL, held_at=60, after=0.0):
    """The record of a training during which somebody was sent a signal, some seconds after its first checkpoint."""
    path = study(folder, "held-ray-torch", more=LONG)

    def find():
        time.sleep(after)
        first = member(folder, role)
        children = [each for each in first.children(recursive=True) if program and program in " ".join(each.cmdline())]
        return children[0] if program else first

    return run_and_signal(folder, path, find, number, held_at, lambda: is_held_after_checkpoint(folder))


def test_ray_train_goes_on_from_the_checkpoint(tmp_path):
    record = disturb(tmp_path, "worker-1", TRAINER)
    assert_recovered(record, EPOCHS)
    assert record["equivalence"]["verdict"] == "exact"


@pytest.mark.soak
def test_without_its_head_the_record_says_so(tmp_path):
    record = disturb(tmp_path, "head", "gcs_server")
    assert record["status"] == "crashed"
    assert record["reason"] == "head: the head of the Ray cluster is gone"


@pytest.mark.soak
def test_with_the_driver_everything_is_gone(tmp_path):
    record = disturb(tmp_path, "driver")
    assert record["status"] == "crashed"
    assert "killed from outside (SIGKILL)" in record["reason"]


@pytest.mark.soak
def test_the_mistake_of_a_worker_is_told_at_once_and_in_its_words(tmp_path):
    assert trainoff("run", study(tmp_path, "slipper", more="workers = 2"), "--out", tmp_path / "out").returncode == 1
    record = only_record(tmp_path / "out")
    assert "LookupError: no such parameter" in record["reason"]
    assert record["reason"].startswith("worker-")
    assert "make_update" in record["traceback"]
    assert survivors(tmp_path) == []


def test_where_nothing_answers_there_is_nothing_to_attach_to(tmp_path):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can have its port
        port = deaf.getsockname()[1]
        path = study(tmp_path, "ray-torch", more=ATTACH.format(address=f"127.0.0.1:{port}"))
        trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["reason"].startswith(f"no Ray cluster answers at 127.0.0.1:{port}")


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("victim", ["worker", "head", "driver"])
def test_kills_at_random_moments_leave_nothing_and_lose_nothing(tmp_path, victim, number):
    choice = kill_choice(f"{victim} {number}")
    role = choice.choice(["worker-0", "worker-1"]) if victim == "worker" else victim
    program = choice.choice(PROGRAMS[victim])
    record = disturb(tmp_path, role, program, held_at=choice.randrange(51, 110), after=choice.uniform(0, 0.1))
    if victim == "worker":
        assert_recovered(record, EPOCHS)
        assert record["counts"].get("nodes_replaced", 0) == (program != TRAINER)
    else:
        assert record["status"] == "crashed"
        assert LOST[victim] in record["reason"]


@pytest.mark.soak
def test_a_stuck_worker_is_found_within_seconds(tmp_path):
    record = disturb(tmp_path, "worker-1", TRAINER, signal.SIGSTOP)
    assert_recovered(record, EPOCHS)
    assert record["counts"]["detection_s"] > 9


@pytest.fixture
def existing():
    """A Ray cluster that is not a trial's; yields its address."""
    folder, (port,) = Path(tempfile.mkdtemp(dir="/tmp")), free_ports(["0.0.0.0"])
    words = ["start", "--head", "--block", "--num-cpus", "2", "--port", port, "--temp-dir", folder]
    quiet = ["--disable-usage-stats", "--include-dashboard", "false"]
    log = folder / "log.txt"
    with log.open("w") as sink:
        argv = [sys.executable, "-m", "ray.scripts.scripts", *map(str, words), *quiet]
        head = subprocess.Popen(argv, env=environment(), stdout=sink, stderr=sink, start_new_session=True)
    deadline = time.monotonic() + HANGS_S
    while "Ray runtime started" not in log.read_text():
        assert head.poll() is None and time.monotonic() < deadline, log.read_text()  # noqa: PT018  # one thing
        time.sleep(0.1)
    yield log.read_text().split("--address='")[1].split("'")[0]
    assert head.poll() is None  # it is not ours to stop
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
def test_a_cluster_of_others_is_used_and_left_alone(tmp_path, existing):
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
