"""The `processes` cluster: readiness, logs by role, and the end of every process."""

import sys

import pytest

from helpers.running import HANGS_S, is_alive
from trainoff.clusters import Cluster
from trainoff.errors import TrainoffError

PYTHON = [sys.executable, "-c"]


@pytest.fixture
def cluster(tmp_path):
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def test_a_process_is_ready_when_its_output_matches(cluster):
    server = cluster.spawn(
        cluster.nodes[0],
        [*PYTHON, "import time; time.sleep(0.2); print('listening on 1234', flush=True); time.sleep(100_000)"],
        {},
        "master",
        ready=lambda process: process.says(r"^listening on \d+"),
        timeout_s=HANGS_S,
    )
    assert server.exit_code is None
    assert server.tail() == "listening on 1234"


def test_a_process_that_ends_before_it_is_ready_is_an_error_with_its_output(cluster):
    with pytest.raises(TrainoffError, match=r"worker-0 ended with code 1 before it was ready:(.|\n)*ZeroDivisionError"):
        cluster.spawn(cluster.nodes[0], [*PYTHON, "1 / 0"], {}, "worker-0", ready=lambda process: False)
    assert cluster.failed().role == "worker-0"


def test_a_process_that_is_not_ready_in_time_is_an_error(cluster):
    with pytest.raises(TrainoffError, match=r"ps-0 was not ready after 0.2 s"):
        cluster.spawn(
            cluster.nodes[0], [*PYTHON, "import time; time.sleep(100_000)"], {}, "ps-0",
            ready=lambda process: False, timeout_s=0.2,
        )  # fmt: skip


def test_a_process_may_be_ended_twice(cluster):
    sleeper = cluster.spawn(cluster.nodes[0], [*PYTHON, "import time; time.sleep(100_000)"], {}, "worker-0")
    cluster.end(sleeper)
    cluster.end(sleeper)
    assert sleeper.exit_code is not None


def test_a_program_that_does_not_exist_is_an_error(cluster):
    with pytest.raises(TrainoffError, match=r"master could not be started on node-0: .*No such file"):
        cluster.spawn(cluster.nodes[0], ["/no/such/program"], {}, "master")


def test_every_process_gets_its_role_and_environment(cluster):
    worker = cluster.spawn(
        cluster.nodes[1],
        [*PYTHON, "import os; print(os.environ['TRAINOFF_ROLE'], os.environ['X'])"],
        {"X": "y"},
        "worker-1",
    )
    assert worker.wait(HANGS_S) == 0
    assert worker.tail() == "worker-1 y"


@pytest.mark.parametrize("own_session", [False, True], ids=["same group", "own session"])
def test_stop_kills_children_and_processes_that_ignore_sigterm(tmp_path, own_session):
    """They are gone when `stop` returns, also workers in their own sessions, as torchrun starts them."""
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(100_000)'];"
        f"child = subprocess.Popen(sleep, start_new_session={own_session});"
        "print('child', child.pid, flush=True); time.sleep(100_000)"
    )
    cluster = Cluster(1, tmp_path)
    process = cluster.spawn(
        cluster.nodes[0], [*PYTHON, stubborn], {}, "worker-0", ready=lambda process: process.says(r"^child \d+\n"),
        timeout_s=HANGS_S,
    )  # fmt: skip
    child = int(process.tail().split()[1])
    cluster.stop(grace_s=0.3)
    assert process.exit_code == -9
    assert not is_alive(child)
