"""The `hosts` cluster: over a stand-in for ssh, and over real sshd processes on two emulated machines."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.running import HANGS_S, environment, records, wait_until
from helpers.sshd import Machines, machines
from trainoff import engines
from trainoff.clusters.ssh.client import Ssh
from trainoff.clusters.ssh.cluster import Hosts, HostsPlan
from trainoff.clusters.ssh.connection import SentFiles, forward_event
from trainoff.errors import TrainoffError
from trainoff.runner.events import NotAnEvent, TrialState, make_event, read_event
from trainoff.runner.job import AGENT
from trainoff.runner.status import check_preconditions
from trainoff.study import read

pytestmark = pytest.mark.cluster

PYTHON = [sys.executable, "-c"]
STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
{do}
"""  # for ssh: it runs the program here
HERE = 'SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$3"'
ENGINES = ("torch-ddp", "tf-allreduce", "spark-average")
BOTH = 'hosts = ["alpha", "root@10.77.0.2:22"]\ncores = 2'


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a program in the place of ssh."""

    def put(do: str) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(STAND_IN.format(do=do))
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put


def cluster_on(folder: Path, memory_bytes: int | None = None) -> Hosts:
    (folder / "trial").mkdir()
    return Hosts(
        HostsPlan(["alpha"], Ssh(sys.executable), AGENT, cores=1.0, memory_bytes=memory_bytes), folder / "trial"
    )


@pytest.fixture
def cluster(tmp_path, stand_in):
    stand_in(HERE)
    with cluster_on(tmp_path) as made:
        made.prepare(["numpy"], java=False)
        yield made


def test_a_process_on_a_host_is_like_one_here(cluster):
    (node,) = cluster.nodes
    words = "import os, sys, time; print(os.environ['TRAINOFF_ROLE'], os.environ['X'], flush=True); time.sleep(100_000)"
    process = cluster.spawn(
        node, [*PYTHON, words], {"X": "y"}, "worker-0", ready=lambda each: each.says(r"^worker-0 y"), timeout_s=HANGS_S
    )
    assert process.exit_code is None
    assert process.pid > 0
    process.signal(signal.SIGTERM)
    assert process.wait(HANGS_S) == -signal.SIGTERM
    assert cluster.failed() is process


def test_a_program_that_a_host_has_not_is_one_sentence(cluster):
    with pytest.raises(TrainoffError, match=r"^alpha: master could not be started: .*No such file.*/no/such/program"):
        cluster.spawn(cluster.nodes[0], ["/no/such/program"], {}, "master")


def test_a_host_that_is_lost_takes_its_processes_along(cluster):
    process = cluster.spawn(cluster.nodes[0], [*PYTHON, "import time; time.sleep(100_000)"], {}, "worker-0")
    (link,) = cluster._links
    link._popen.kill()
    assert process.wait(HANGS_S) == 255
    assert process.tail().strip() == "the connection with alpha is lost"
    with pytest.raises(TrainoffError, match="the connection with alpha is lost"):
        cluster.spawn(cluster.nodes[0], ["true"], {}, "worker-0")


def listening(folder: Path, monkeypatch) -> int:
    """A pipe for events, as a trial has it."""
    os.mkfifo(folder / "pipe")
    monkeypatch.setenv("TRAINOFF_EVENTS", str(folder / "pipe"))
    return os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK)


def heard(pipe: int, kind: str) -> dict:
    """The next event of a kind."""
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


def test_events_of_a_host_arrive_with_the_time_of_this_machine(tmp_path, monkeypatch, cluster):
    pipe, before = listening(tmp_path, monkeypatch), time.monotonic()
    words = "import os; os.write(os.open(os.environ['TRAINOFF_EVENTS'], os.O_WRONLY), b'%s\\n')"
    said = json.dumps({"t": -1.0, "kind": "note", "name": "a", "text": "b"})
    cluster.spawn(cluster.nodes[0], [*PYTHON, words % said], {}, "worker-0").wait(HANGS_S)
    event = heard(pipe, "note")
    assert (event["name"], event["text"]) == ("a", "b")
    assert event["t"] > before


def test_a_worker_that_uses_too_much_memory_is_ended_and_told(tmp_path, monkeypatch, stand_in):
    stand_in(HERE)
    pipe = listening(tmp_path, monkeypatch)
    with cluster_on(tmp_path, memory_bytes=2**26) as cluster:
        cluster.prepare([], java=False)
        words = "x = bytearray(2**27); import time; time.sleep(100_000)"
        process = cluster.spawn(cluster.nodes[0], [*PYTHON, words], {}, "worker-0")
        event = heard(pipe, "over-memory")
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
def test_what_ssh_says_becomes_a_sentence(tmp_path, stand_in, do, sentence):
    stand_in(do)
    with cluster_on(tmp_path) as cluster, pytest.raises(TrainoffError, match=sentence):
        cluster.prepare([], java=False)


def test_other_versions_are_named_with_the_command_that_mends_them(tmp_path, stand_in):
    older = (
        """import importlib.metadata as m; real = m.version; m.version = lambda n: "1.0" if n == "numpy" else real(n)"""
    )
    (tmp_path / "sitecustomize.py").write_text(older)
    stand_in(HERE.replace("exec", f"PYTHONPATH={tmp_path} exec"))
    with cluster_on(tmp_path) as cluster, pytest.raises(TrainoffError) as caught:
        cluster.prepare([], java=False)
    assert str(caught.value).startswith("alpha has numpy 1.0, and here is ")
    assert "; pip install numpy==" in str(caught.value)


def test_only_what_is_new_is_sent_and_nothing_that_is_private(tmp_path):
    ledger = SentFiles(tmp_path, ["trial.json", "logs/*"])
    (tmp_path / "logs").mkdir()
    for name in ("trial.json", "assignment", "logs/driver.txt"):
        (tmp_path / name).write_text("old")
    assert [path.name for path in ledger.news()] == ["logs", "assignment"]
    assert ledger.news() == []
    (tmp_path / "assignment").write_text("newer")
    assert [path.name for path in ledger.news()] == ["assignment"]


def test_every_line_of_a_host_reaches_the_runner(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "events")
    monkeypatch.setenv("TRAINOFF_EVENTS", str(tmp_path / "events"))
    pipe = os.open(tmp_path / "events", os.O_RDWR | os.O_NONBLOCK)
    long = b'{"kind": "note", "text": "%s"}\n' % (b"x" * 5000)
    for line in (b'{"kind": "done", "t": 0.5}\n', b"5\n", b"hello\n", long):
        forward_event(line)
    event, *others = os.read(pipe, 65536).splitlines()
    os.close(pipe)
    assert read_event(event).t > 0.5, "by this machine's clock"
    assert [line[:20] for line in others] == [b"5", b"hello", b'{"kind": "note", "te']
    for line in others:
        with pytest.raises(NotAnEvent):
            read_event(line)


def test_what_hosts_use_counts_beside_what_is_used_here():
    state, used = TrialState(0.0), {"user_s": 2.0, "system_s": 1.0, "pss": 5}
    state.apply(make_event({"t": 1.0, "kind": "host-sample", "host": "alpha", "role": "worker-0", **used}))
    for tick in (1.0, 2.0):
        cpu = {"user_s": 1.0, "system_s": 0.0}
        state.apply(make_event({"t": tick, "kind": "sample", "role": "driver", "tick": tick, **cpu}))
        state.apply(make_event({"t": tick, "kind": "sample", "role": "machine", "tick": tick}))
    assert state.cpu_series() == [(1.0, 4.0), (2.0, 4.0)]
    assert state.cpu_series(here=True) == [(1.0, 1.0), (2.0, 1.0)]
    assert state.cpu_series("worker-0") == [(1.0, 3.0), (2.0, 3.0)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('protocol = "inproc"', "threads of one process cannot be spread over hosts; leave `protocol` out"),
        (
            'fault = { action = "slow" }',
            "faults are injected only into nodes that trainoff starts on this machine",
        ),
    ],
)
def test_what_hosts_cannot_do_is_refused(tmp_path, said, reason):
    (tmp_path / "far.toml").write_text(
        'workload = "digits-mlp"\nengines = ["dask-average"]\n'
        f'[cluster]\nkind = "hosts"\nhosts = ["alpha", "beta"]\n[params]\n{said}\n'
    )
    (trial,) = read(tmp_path / "far.toml", engines.facts()).trials()
    assert check_preconditions(trial, engines.get("dask-average")).reason == reason


@pytest.fixture(scope="module")
def lan(tmp_path_factory):
    """Two machines, on which all that the tests write here is not there."""
    with machines(tmp_path_factory.mktemp("machines"), tmp_path_factory.getbasetemp(), sys.executable) as found:
        yield found


def assert_nothing_is_left(lan: Machines) -> None:
    """No process on the machines, and no file but datasets."""
    deadline = time.monotonic() + HANGS_S
    while (left := lan.running()) or (files := _scratch(lan)):
        assert time.monotonic() < deadline, left or files
        time.sleep(0.1)


def _scratch(lan: Machines) -> list[str]:
    files = lan.files("alpha") | lan.files("beta")
    return [name for name in files if not name.startswith("cache")]


@pytest.fixture(scope="module")
def cpu_s_of_numpy() -> float:
    """What it costs on this machine to import numpy."""
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
def test_two_machines_train_what_one_would(trained, cpu_s_of_numpy, engine):
    record = trained[engine]
    assert record["equivalence"]["verdict"] == "exact", record["reason"]
    assert (record["cluster"], record["workers"], record["samples_seen"]) == ("hosts", 2, 600)
    assert record["isolation"]["own_network"] is False
    assert "other hosts" in record["isolation"]["reason"]
    assert {"driver", "worker-0", "worker-1"} <= record["cpu_s_by_role"].keys()
    for worker in ("worker-0", "worker-1"):
        assert record["cpu_s_by_role"][worker] > 0.3 * cpu_s_of_numpy  # to import it is the least that a worker does
        assert record["peak_memory_bytes_by_role"][worker] > 10**7
    assert record["cpu_s"] >= sum(record["cpu_s_by_role"].values()) - 0.01


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_rows_are_kept_on_the_machines_and_logs_come_back(trained, lan):
    assert any(name.endswith("digits/x_train.npy") for name in lan.files("beta"))
    (log,) = lan.hidden.glob(f"on hosts[0-9]*/out/far/{trained['spark-average']['trial_id']}/log.txt")
    assert re.search(r"^==== worker-1/app-.*/stderr ====$", log.read_text(), re.MULTILINE)  # an executor's


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_every_process_there_runs_the_python_that_was_named(trained, lan):
    ran = lan.path("beta", Path("/run/python.log")).read_text()
    for module in ("torch_ddp.agent", "torch_ddp.worker", "tf_cluster.allreduce_worker", "spark.daemon"):
        assert f"-m trainoff.engines.{module}" in ran


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.java
@pytest.mark.namespace
def test_a_checkpoint_that_others_could_not_read_is_not_made(trained):
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
def test_a_host_that_cannot_take_part_is_one_sentence(lan, tmp_path, cluster, sentence):
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
def test_when_the_runner_is_killed_nothing_is_left_on_the_machines(lan, tmp_path):
    path = lan.study(tmp_path, "torch-ddp", cluster=f'{BOTH}\npython = "/run/held-python"')
    words = lan.command("run", path, "--out", tmp_path / "out")
    run = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(lambda: len([each for each in lan.running() if "sleep 100000" in each]) == 2, run)  # instead of workers
    assert len([each for each in lan.running() if "torch_ddp.agent" in each]) == 2
    assert any(name.endswith("assignment") for name in lan.files("beta"))
    run.kill()
    run.wait()
    assert_nothing_is_left(lan)


def test_the_facts_run_alone(tmp_path):
    """They are sent as a text, to a Python that knows nothing of trainoff."""
    from trainoff.clusters.ssh import facts

    asked = json.dumps({"packages": ["numpy", "no-such-package"], "path": [], "guard": ""})
    source = Path(facts.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-c", source, asked], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    told = json.loads(done.stdout.removeprefix(facts.MARK))
    assert told["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert told["packages"]["no-such-package"] is None


def test_a_guard_that_is_killed_takes_its_processes_along(cluster):
    words = "import os, time; print('guard', os.getppid(), flush=True); time.sleep(100_000)"
    process = cluster.spawn(
        cluster.nodes[0],
        [*PYTHON, words],
        {},
        "worker-0",
        ready=lambda each: each.says(r"^guard \d+\n"),
        timeout_s=HANGS_S,
    )
    os.kill(int(process.log_text().split()[1]), signal.SIGKILL)
    assert process.wait(HANGS_S) == 255
    gone = time.monotonic() + HANGS_S
    while lives(process.pid):
        assert time.monotonic() < gone, "it lives on"
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
