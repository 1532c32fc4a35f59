"""The `hosts` cluster: over a fake ssh, and over real sshd processes on two emulated machines."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import convert

from helpers.running import HANGS_S, assert_soon_empty, environment, is_alive, records, wait_for, wait_until
from helpers.sshd import Machines, machines
from trainoff import engines
from trainoff.clusters.ssh.client import Ssh
from trainoff.clusters.ssh.cluster import Hosts, HostsPlan
from trainoff.clusters.ssh.connection import SentFiles, forward_event
from trainoff.errors import TrainoffError
from trainoff.runner.events import AnyEvent, TrialState, read_event
from trainoff.runner.job import AGENT
from trainoff.runner.status import check_preconditions
from trainoff.study import read

pytestmark = pytest.mark.cluster

PYTHON = [sys.executable, "-c"]
FAKE_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
{do}
"""  # it runs the program on this machine
HERE = 'SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$3"'
ENGINES = ("torch-ddp", "tf-allreduce", "spark-average")
BOTH = 'hosts = ["alpha", "root@10.77.0.2:22"]\ncores = 2'


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """A function that puts a shell script in the place of ssh."""

    def put(do: str) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(FAKE_SSH.format(do=do))
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put


def cluster_on(folder: Path, memory_bytes: int | None = None) -> Hosts:
    (folder / "trial").mkdir()
    return Hosts(
        HostsPlan(["alpha"], Ssh(sys.executable), AGENT, cores=1.0, memory_bytes=memory_bytes), folder / "trial"
    )


@pytest.fixture
def cluster(tmp_path, fake_ssh):
    fake_ssh(HERE)
    with cluster_on(tmp_path) as hosts:
        hosts.prepare(["numpy"], java=False)
        yield hosts


def test_a_process_on_a_host_behaves_like_a_local_one(cluster):
    (node,) = cluster.nodes
    code = "import os, sys, time; print(os.environ['TRAINOFF_ROLE'], os.environ['X'], flush=True); time.sleep(100_000)"
    process = cluster.spawn(
        node, [*PYTHON, code], {"X": "y"}, "worker-0", ready=lambda each: each.says(r"^worker-0 y"), timeout_s=HANGS_S
    )
    assert process.exit_code is None
    assert process.pid > 0
    process.signal(signal.SIGTERM)
    assert process.wait(HANGS_S) == -signal.SIGTERM
    assert cluster.failed() is process


def test_a_program_that_a_host_does_not_have_is_an_error(cluster):
    with pytest.raises(TrainoffError, match=r"^alpha: master could not be started: .*No such file.*/no/such/program"):
        cluster.spawn(cluster.nodes[0], ["/no/such/program"], {}, "master")


def test_a_lost_connection_ends_the_hosts_processes(cluster):
    process = cluster.spawn(cluster.nodes[0], [*PYTHON, "import time; time.sleep(100_000)"], {}, "worker-0")
    (link,) = cluster._links
    link._popen.kill()
    assert process.wait(HANGS_S) == 255
    assert process.tail().strip() == "the connection with alpha is lost"
    with pytest.raises(TrainoffError, match="the connection with alpha is lost"):
        cluster.spawn(cluster.nodes[0], ["true"], {}, "worker-0")


def open_pipe(folder: Path, monkeypatch) -> int:
    """Make and open a pipe for events, as a trial has one."""
    os.mkfifo(folder / "pipe")
    monkeypatch.setenv("TRAINOFF_EVENTS", str(folder / "pipe"))
    return os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK)


def next_event(pipe: int, kind: str) -> dict:
    """Return the next event of a kind."""
    deadline, rest = time.monotonic() + HANGS_S, b""
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            rest += os.read(pipe, 65536)
        *lines, rest = rest.split(b"\n")
        for event in map(json.loads, lines):
            if event["kind"] == kind:
                return event
        time.sleep(0.05)
    raise AssertionError(f"no event {kind}")


def test_events_of_a_host_have_the_time_of_this_machine(tmp_path, monkeypatch, cluster):
    pipe, before = open_pipe(tmp_path, monkeypatch), time.monotonic()
    code = "import os; os.write(os.open(os.environ['TRAINOFF_EVENTS'], os.O_WRONLY), b'%s\\n')"
    line = json.dumps({"t": -1.0, "kind": "note", "name": "a", "text": "b"})
    cluster.spawn(cluster.nodes[0], [*PYTHON, code % line], {}, "worker-0").wait(HANGS_S)
    event = next_event(pipe, "note")
    assert (event["name"], event["text"]) == ("a", "b")
    assert event["t"] > before


def test_a_worker_over_its_memory_limit_is_killed_and_reported(tmp_path, monkeypatch, fake_ssh):
    fake_ssh(HERE)
    pipe = open_pipe(tmp_path, monkeypatch)
    with cluster_on(tmp_path, memory_bytes=2**26) as cluster:
        cluster.prepare([], java=False)
        code = "x = bytearray(2**27); import time; time.sleep(100_000)"
        process = cluster.spawn(cluster.nodes[0], [*PYTHON, code], {}, "worker-0")
        event = next_event(pipe, "over-memory")
        assert (event["role"], event["limit"]) == ("worker-0", 2**26)
        assert event["bytes"] > 2**26
        assert process.wait(HANGS_S) != 0


def test_a_host_on_the_same_disk_keeps_the_trials_folder(tmp_path, cluster):
    (tmp_path / "trial" / "mine").write_text("kept")
    assert cluster.spawn(cluster.nodes[0], ["cat", "mine"], {}, "reader").wait(HANGS_S) == 0
    cluster.stop()
    assert (tmp_path / "trial" / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        ("echo 'Host key verification failed.' >&2; exit 255", "alpha is not a known host; connect once by hand"),
        ("exit 127", "alpha has no Python at .*; install there what is installed here, or name its interpreter"),
        ("echo oh >&2; exit 3", r"alpha could not be used: ssh ended with code 3 \(oh\)"),
    ],
)
def test_ssh_errors_become_one_line_errors(tmp_path, fake_ssh, do, sentence):
    fake_ssh(do)
    with cluster_on(tmp_path) as cluster, pytest.raises(TrainoffError, match=sentence):
        cluster.prepare([], java=False)


def test_other_versions_are_reported_with_the_command_that_installs_them(tmp_path, fake_ssh):
    older = (
        """import importlib.metadata as m; real = m.version; m.version = lambda n: "1.0" if n == "numpy" else real(n)"""
    )
    (tmp_path / "sitecustomize.py").write_text(older)
    fake_ssh(HERE.replace("exec", f"PYTHONPATH={tmp_path} exec"))
    with cluster_on(tmp_path) as cluster, pytest.raises(TrainoffError) as caught:
        cluster.prepare([], java=False)
    assert str(caught.value).startswith("alpha has numpy 1.0, and here is ")
    assert "; pip install numpy==" in str(caught.value)


def test_only_new_files_that_are_not_private_are_sent(tmp_path):
    sent = SentFiles(tmp_path, ["trial.json", "logs/*"])
    (tmp_path / "logs").mkdir()
    for name in ("trial.json", "assignment", "logs/driver.txt"):
        (tmp_path / name).write_text("old")
    assert [path.name for path in sent.updates()] == ["logs", "assignment"]
    assert sent.updates() == []
    (tmp_path / "assignment").write_text("newer")
    assert [path.name for path in sent.updates()] == ["assignment"]


def test_every_line_of_a_host_is_forwarded(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "events")
    monkeypatch.setenv("TRAINOFF_EVENTS", str(tmp_path / "events"))
    pipe = os.open(tmp_path / "events", os.O_RDWR | os.O_NONBLOCK)
    long = b'{"kind": "note", "text": "%s"}\n' % (b"x" * 5000)
    for line in (b'{"kind": "done", "t": 0.5}\n', b"5\n", b"hello\n", long):
        forward_event(line)
    event, *others = os.read(pipe, 65536).splitlines()
    os.close(pipe)
    assert read_event(event).t > 0.5, "in this machine's clock"
    assert [line[:20] for line in others] == [b"5", b"hello", b'{"kind": "note", "te']
    for line in others:
        with pytest.raises(ValueError, match=r"Expect|Unterminated"):
            read_event(line)


def test_samples_of_hosts_are_added_to_those_of_this_machine():
    state, used = TrialState(0.0), {"user_s": 2.0, "system_s": 1.0, "pss": 5}
    state.apply(convert({"t": 1.0, "kind": "host-sample", "host": "alpha", "role": "worker-0", **used}, AnyEvent))
    for tick in (1.0, 2.0):
        cpu = {"user_s": 1.0, "system_s": 0.0}
        state.apply(convert({"t": tick, "kind": "sample", "role": "driver", "tick": tick, **cpu}, AnyEvent))
        state.apply(convert({"t": tick, "kind": "sample", "role": "machine", "tick": tick}, AnyEvent))
    assert state.cpu_series() == [(1.0, 4.0), (2.0, 4.0)]
    assert state.cpu_series(here=True) == [(1.0, 1.0), (2.0, 1.0)]
    assert state.cpu_series("worker-0") == [(1.0, 3.0), (2.0, 3.0)]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ('protocol = "inproc"', "threads of one process cannot be spread over hosts; leave `protocol` out"),
        ('fault = { action = "slow" }', "faults are injected only into nodes that trainoff starts on this machine"),
    ],
)
def test_settings_that_hosts_do_not_support_are_refused(tmp_path, params, reason):
    (tmp_path / "far.toml").write_text(
        'workload = "digits-mlp"\nengines = ["dask-average"]\n'
        f'[cluster]\nkind = "hosts"\nhosts = ["alpha", "beta"]\n[params]\n{params}\n'
    )
    (trial,) = read(tmp_path / "far.toml", engines.facts()).trials()
    assert check_preconditions(trial, engines.get("dask-average")).reason == reason


@pytest.fixture(scope="module")
def lan(tmp_path_factory):
    """Two emulated machines that do not see the files of the tests."""
    with machines(tmp_path_factory.mktemp("machines"), tmp_path_factory.getbasetemp(), sys.executable) as found:
        yield found


def assert_nothing_is_left(lan: Machines) -> None:
    """Wait until the machines have no process and no file but datasets."""
    assert_soon_empty(lambda: lan.running() or _scratch(lan))


def _scratch(lan: Machines) -> list[str]:
    files = lan.files("alpha") | lan.files("beta")
    return [name for name in files if not name.startswith("cache")]


@pytest.fixture(scope="module")
def cpu_s_of_numpy() -> float:
    """The CPU time of importing numpy on this machine."""
    before = os.times()
    subprocess.run([*PYTHON, "import numpy"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.fixture(scope="module")
def trained(lan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("on hosts")
    other = f'{BOTH}\npython = "/run/python"'
    path = lan.study(folder, *ENGINES, cluster=other, more='optimizer = "sgd"\ntau = 1')
    done = lan.trainoff("run", path, "--out", folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_is_left(lan)
    return {record["engine"]: record for record in records(folder / "out")}


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
@pytest.mark.parametrize("engine", ENGINES)
def test_training_on_two_machines_is_exact(trained, cpu_s_of_numpy, engine):
    record = trained[engine]
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert (record["cluster"], record["workers"], record["samples_seen"]) == ("hosts", 2, 600)
    assert record["isolation"]["own_network"] is False
    assert "other hosts" in record["isolation"]["reason"]
    assert {"driver", "worker-0", "worker-1"} <= record["cpu_s_by_role"].keys()
    for worker in ("worker-0", "worker-1"):
        assert record["cpu_s_by_role"][worker] > 0.3 * cpu_s_of_numpy  # a worker does at least this import
        assert record["peak_memory_bytes_by_role"][worker] > 10**7
    assert record["cpu_s"] >= sum(record["cpu_s_by_role"].values()) - 0.01


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_rows_are_cached_on_the_machines_and_logs_are_fetched(trained, lan):
    assert any(name.endswith("digits/x_train.npy") for name in lan.files("beta"))
    (log,) = lan.hidden.glob(f"on hosts[0-9]*/out/far/{trained['spark-average']['trial_id']}/log.txt")
    assert re.search(r"^==== worker-1/app-.*/stderr ====$", log.read_text(), re.MULTILINE)  # an executor's


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_every_process_on_a_host_runs_the_configured_python(trained, lan):
    ran = lan.path("beta", Path("/run/python.log")).read_text()
    for module in ("torch_ddp.agent", "torch_ddp.worker", "tf_cluster.allreduce_worker", "spark.daemon"):
        assert f"-m trainoff.engines.{module}" in ran


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_a_checkpoint_that_other_hosts_could_not_read_is_turned_off(trained):
    assert trained["torch-ddp"]["params"]["checkpoint_every"] == 0
    assert "checkpoint_every" in trained["torch-ddp"]["settled"]


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.namespace
@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ('hosts = ["alpha", "locked"]', "locked does not accept your key (root@10.77.0.1: Permission denied"),
        ('hosts = ["alpha", "nowhere"]', "nowhere cannot be reached (ssh: connect to host 10.77.0.99 port 22: "),
        (
            'hosts = ["alpha"]\npython = "/run/old-python"',
            "alpha has Python 3.8 at /run/old-python, and here it is 3.11; name one that fits, as in python = ",
        ),
    ],
)
def test_an_unusable_host_is_a_one_line_error(lan, tmp_path, cluster, sentence):
    done = lan.trainoff("run", lan.study(tmp_path, "torch-ddp", cluster=cluster), "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    (record,) = records(tmp_path / "out")
    assert (record["status"], record["phase"]) == ("start-failed", "cluster_start")
    assert record["reason"].replace(f"{sys.version_info[0]}.{sys.version_info[1]};", "3.11;").startswith(sentence)
    assert "\n" not in record["reason"]
    assert_nothing_is_left(lan)


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.namespace
def test_a_killed_runner_leaves_nothing_on_the_machines(lan, tmp_path):
    path = lan.study(tmp_path, "torch-ddp", cluster=f'{BOTH}\npython = "/run/held-python"')
    argv = lan.command("run", path, "--out", tmp_path / "out")
    run = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(
        lambda: len([each for each in lan.running() if "sleep 100000" in each]) == 2, run
    )  # in the place of workers
    assert len([each for each in lan.running() if "torch_ddp.agent" in each]) == 2
    assert any(name.endswith("assignment") for name in lan.files("beta"))
    run.kill()
    run.wait()
    assert_nothing_is_left(lan)


def test_facts_imports_nothing_of_trainoff(tmp_path):
    """Its source is sent to a Python without trainoff."""
    from trainoff.clusters.ssh import facts

    asked = json.dumps({"packages": ["numpy", "no-such-package"], "path": [], "agent": ""})
    source = Path(facts.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-c", source, asked], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    reported = json.loads(done.stdout.removeprefix(facts.MARK))
    assert reported["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert reported["packages"]["no-such-package"] is None


def test_a_killed_remote_agent_takes_its_processes_with_it(cluster):
    code = "import os, time; print('guard', os.getppid(), flush=True); time.sleep(100_000)"
    process = cluster.spawn(
        cluster.nodes[0],
        [*PYTHON, code],
        {},
        "worker-0",
        ready=lambda each: each.says(r"^guard \d+\n"),
        timeout_s=HANGS_S,
    )
    os.kill(int(process.log_text().split()[1]), signal.SIGKILL)
    assert process.wait(HANGS_S) == 255
    wait_for(lambda: not is_alive(process.pid))
