"""Labs in real trials: nodes with their own addresses, CPU quotas, memory limits and links, and no trace afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from helpers.running import (
    HANGS_S,
    assert_nothing_survives,
    command,
    environment,
    kill_choice,
    only_record,
    study,
    trainoff,
    wait_for,
    wait_until,
)
from trainoff.clusters.lab.cgroups import find_groups
from trainoff.clusters.lab.register import folder, owned

LAB = """
[cluster]
kind = "lab"
cores = {cores}
memory_gb = {memory}
bandwidth_mbit = 200
nodes = {nodes}
"""
MOMENTS = [
    *(pytest.param(number, id=f"moment{number}") for number in range(5)),
    *(pytest.param(number, id=f"moment{number}", marks=pytest.mark.soak) for number in range(5, 100)),
]

pytestmark = [pytest.mark.lab, pytest.mark.cluster]


def lab(nodes: int, memory: float = 1.0, cores: float = 0.3) -> str:
    return LAB.format(nodes=nodes, memory=memory, cores=cores)


PLUGIN = """
import os, time
from pathlib import Path
from misbehaving import Family
from trainoff.engines.torch_ddp import TorchDdp


class HeldFamily(Family):
    '''A family that waits at the end of its training until the file $RELEASED exists.'''

    name = "held-family"

    def train(self, job, watch):
        super().train(job, watch)
        while not Path(os.environ["RELEASED"]).exists():
            time.sleep(0.05)
            watch.progress(job.order.steps)


class Throttled(TorchDdp):
    '''Uses more CPU than its node has before it trains, for longer than the interval of two samples.'''

    name = "throttled-ddp"

    def train(self, job, watch):
        usage = job.cluster._groups[0].usage
        before, start = usage().throttled_s, time.monotonic()
        while usage().throttled_s < before + 0.005 or time.monotonic() < start + 1:
            sum(range(100_000))
        super().train(job, watch)
"""
ENTRIES = "[trainoff.engines]\nheld-family = lab_engines:HeldFamily\nthrottled-ddp = lab_engines:Throttled\n"


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with these engines, too; held-family ends no training before the file $RELEASED exists."""
    place = tmp_path_factory.mktemp("engines")
    (place / "lab_engines.py").write_text(PLUGIN)
    (place / "lab_engines-1.0.dist-info").mkdir()
    (place / "lab_engines-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lab-engines\nVersion: 1.0\n"
    )
    (place / "lab_engines-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)
    released = tmp_path_factory.mktemp("held") / "released"
    return {"PYTHONPATH": f"{place}{os.pathsep}{environment()['PYTHONPATH']}", "RELEASED": str(released)}


def traces() -> dict[str, list[str]]:
    """Return what a lab could leave on the machine outside its namespaces."""
    links = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout
    return {
        "links": sorted(link["ifname"] for link in json.loads(links)),
        "mounts": sorted(set(Path("/proc/self/mounts").read_text().splitlines())),
        "named namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
        "groups without a lab": [name for name in find_groups().labs() if not owned(name)],
        "register entries without a lab": [path.name for path in folder().glob("*.json") if not owned(path.stem)],
    }


def machine_state() -> dict[str, list[str]]:
    """Return the traces and every process, port and network namespace; for tests that run alone on a machine."""
    listening = [link.laddr for link in psutil.net_connections("inet") if link.status == psutil.CONN_LISTEN]
    running = [(each.info["pid"], each.info["cmdline"]) for each in psutil.process_iter(["pid", "cmdline"])]
    return traces() | {
        "processes": [
            f"{pid} {' '.join(argv)}" for pid, argv in running if argv
        ],  # kernel threads have no command line
        "ports": [f"{address.ip}:{address.port}" for address in listening],
        "namespaces": [place for pid, _ in running if (place := _network_of(pid))],
    }


def _network_of(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return None  # it has ended meanwhile


def assert_no_new_trace(before: dict[str, list[str]], collect: Callable[[], dict[str, list[str]]] = traces) -> None:
    """Wait until everything that is new since `before` is gone."""
    left, end = {kind: set(now) - set(before[kind]) for kind, now in collect().items()}, time.monotonic() + HANGS_S
    while any(left.values()):
        assert time.monotonic() < end, left
        time.sleep(0.1)
        left = {kind: left[kind] & set(now) for kind, now in collect().items()}


@pytest.fixture(scope="module", autouse=True)
def the_machine_is_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the kills of a soak, which has the machine to itself, check that the whole machine is as before."""
    before = machine_state() if request.config.option.markexpr == "soak" else None
    yield
    if before:
        assert_no_new_trace(before, machine_state)


@pytest.fixture
def up():
    """A lab of two nodes that was started by hand."""
    before = traces()
    done = trainoff("lab", "up", "--nodes", "2", "--cores", "0.2", "--memory-gb", "0.25", "--bandwidth-mbit", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    yield
    assert trainoff("lab", "down").returncode == 0
    assert_no_new_trace(before)


def test_a_lab_started_by_hand(up):
    again = trainoff("lab", "up")
    assert (again.returncode, "is up already" in again.stderr) == (2, True)
    shown = trainoff("lab", "exec", "node-1", "--", "ip", "-json", "addr", "show", "eth0")
    (address,) = [each["local"] for each in json.loads(shown.stdout)[0]["addr_info"] if each["family"] == "inet"]
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    assert [node["node"] for node in nodes] == ["node-0", "node-1"]
    assert nodes[1]["address"] == address
    assert nodes[1]["memory_limit_bytes"] == 2**28
    greedy = trainoff("lab", "exec", "0", "--", sys.executable, "-c", "print(len(bytearray(2**29)))")
    assert greedy.returncode == -9, "the kernel did not limit the node's memory"
    assert "it has node-0 to node-1" in trainoff("lab", "exec", "7", "--", "true").stderr


CONNECT = "import socket; socket.create_connection(('{}', 5000), {}).sendall(b'hello')"
ACCEPT = (
    "import socket; s = socket.create_server(('0.0.0.0', 5000)); print('up', flush=True); print(s.accept()[0].recv(5))"
)
LONG_S, SHORT_S = HANGS_S, 2  # the timeouts of connections that must succeed and that must not


@contextmanager
def on_node(number: int, program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program on a node until the `with` ends."""
    argv = command("lab", "exec", str(number), "--", sys.executable, "-c", program)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(), text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_nodes_reach_each_other_and_no_other_address(up):
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    with on_node(1, ACCEPT) as server:
        assert server.stdout.readline() == "up\n"
        connected = trainoff(
            "lab", "exec", "0", "--", sys.executable, "-c", CONNECT.format(nodes[1]["address"], LONG_S)
        )
        assert connected.returncode == 0, connected.stderr
        assert server.stdout.read() == "b'hello'\n"
    outside = trainoff("lab", "exec", "0", "--", sys.executable, "-c", CONNECT.format("192.0.2.1", LONG_S))
    assert "Network is unreachable" in outside.stderr


CLOCK = """
import time
while True:
    print(time.monotonic(), flush=True)
    time.sleep(0.05)
"""


def is_paused(lab: str) -> bool:
    """Return whether a lab's nodes have processes and all of them are stopped."""
    found = [psutil.Process(pid).status() for pid in find_groups().pids(lab)]
    return bool(found) and set(found) == {psutil.STATUS_STOPPED}


def test_faults_injected_by_hand(up):
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    with on_node(1, CLOCK) as clock:
        assert float(clock.stdout.readline()) > 0
        assert trainoff("lab", "pause", "1").stdout == "pause: node-1 of lab\n"
        wait_until(lambda: is_paused(nodes[1]["lab"]), clock)
        stopped = time.monotonic()
        paused = json.loads(trainoff("lab", "status", "--json").stdout)[1]
        assert (paused["processes"] > 0, paused["busy_cores"]) == (True, 0)
        resumed = time.monotonic()
        assert trainoff("lab", "resume", "node-1").returncode == 0
        times = [0.0]
        while times[-1] <= resumed:
            times.append(float(clock.stdout.readline()))
        assert [at for at in times if stopped < at <= resumed] == []
        assert trainoff("lab", "slow", "1", "--share", "0.5").returncode == 0
        assert trainoff("lab", "kill", "1").returncode == 0
        assert clock.wait(HANGS_S) == -9
    call = ["lab", "exec", "0", "--", sys.executable, "-c", CONNECT.format(nodes[1]["address"], LONG_S)]
    assert "Connection refused" in trainoff(*call).stderr  # the node is up, and nothing listens on the port
    assert trainoff("lab", "cut", "1").returncode == 0
    cut = trainoff(*call[:-1], CONNECT.format(nodes[1]["address"], SHORT_S)).stderr
    assert "Connection refused" not in cut
    assert "timed out" in cut or "No route to host" in cut
    assert trainoff("lab", "heal", "1").returncode == 0
    assert "Connection refused" in trainoff(*call).stderr
    assert "--share 2: expected a number above 0" in trainoff("lab", "slow", "1", "--share", "2").stderr


def test_a_killed_supervisor_leaves_nothing():
    before = traces()
    assert trainoff("lab", "up", "--nodes", "2", "--cores", "0.1").returncode == 0
    (name,) = {node["lab"] for node in json.loads(trainoff("lab", "status", "--json").stdout)}
    subprocess.run(["kill", "-9", name.partition("-")[0]], check=True)
    wait_for(lambda: not owned(name))
    assert trainoff("lab", "down").returncode == 0
    assert name not in find_groups().labs()
    assert_no_new_trace(before)


def test_a_training_on_two_nodes(tmp_path, engines):
    path = study(tmp_path, "throttled-ddp", more=lab(nodes=2, cores=0.1))
    done = trainoff("run", path, "--out", tmp_path / "out", **engines)
    record = only_record(tmp_path / "out")
    assert (record["status"], record["equivalence"]["verdict"]) == ("ok", "exact"), done.stdout
    assert (record["cluster"], record["workers"], record["cores"]) == ("lab", 2, 0.1)
    sent = [node["sent_bytes"] for node in record["nodes"]]
    assert record["network_bytes"] == pytest.approx(sum(sent), rel=0.01)
    assert all(node["training"]["sent_bytes"] > record["model"]["parameters"] * 4 for node in record["nodes"])
    assert all(0 < node["peak_memory_bytes"] < 2**30 for node in record["nodes"])
    assert record["nodes"][0]["training"]["throttled_s"] > 0
    assert record["network_bytes_by_role"]["worker-1"]["sent"] > 0
    shown = trainoff("show", next((tmp_path / "out" / "tiny").glob("throttled-ddp*")))
    assert "200 Mbit/s" in shown.stdout


def labs_of_trials() -> list[str]:
    rows = json.loads(trainoff("lab", "status", "--json").stdout)
    return [row["lab"] for row in rows if "held-family" in row["about"]]


def test_a_fault_injected_by_hand_is_in_the_trials_record(tmp_path, engines):
    path = study(tmp_path, "held-family", more=lab(nodes=2))
    run = subprocess.Popen(
        command("run", path, "--out", tmp_path / "out"), env=environment(**engines), stdout=subprocess.DEVNULL
    )
    wait_until(labs_of_trials, run)
    slowed = trainoff("lab", "slow", "1", "--lab", labs_of_trials()[0])
    run.send_signal(signal.SIGINT)
    run.wait(HANGS_S)
    assert slowed.returncode == 0, slowed.stderr
    assert "by hand: slow node-1" in only_record(tmp_path / "out")["notes"]


def test_a_node_over_its_memory_limit_is_reported_with_the_figure(tmp_path):
    path = study(tmp_path, "glutton", more=lab(nodes=1, memory=0.2))
    trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "out-of-memory"
    assert record["reason"] == "node-0 used 0.20 GiB of its 0.2 GiB"
    assert record["nodes"][0]["oom_kills"] >= 1


@pytest.mark.parametrize("number", MOMENTS)
def test_a_lab_run_that_is_killed_at_a_random_moment_leaves_nothing(tmp_path, engines, number):
    before, choice = traces(), kill_choice(f"lab {number}")
    path = study(tmp_path, "held-family", more=lab(nodes=3))
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 200"))
    released = tmp_path.parent / f"released-{number}"
    run = subprocess.Popen(
        command("run", path, "--out", tmp_path / "out"),
        env=environment(**engines | {"RELEASED": str(released)}),
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: (tmp_path / "out" / "tiny" / ".staging").exists(), run)
    time.sleep(choice.uniform(0.0, 3.0))  # the run cannot end before it is released
    assert run.poll() is None
    inside = [pid for pid in _processes_of_the_nodes(tmp_path) if pid != run.pid]
    runner = number % 2 == 0 or not inside
    subprocess.run(["kill", "-9", str(run.pid if runner else choice.choice(inside))], check=False)
    released.touch()  # the training may go on without the killed process
    run.wait(2 * HANGS_S)
    if runner:
        assert trainoff("lab", "down").returncode == 0
    assert_nothing_survives(tmp_path)  # a runner that lives has cleaned up
    if _groups_of(run):  # on a busy machine some may be left, which the next command removes
        assert trainoff("lab", "down").returncode == 0
    assert _groups_of(run) == []
    assert_no_new_trace(before)


def _groups_of(run: subprocess.Popen[bytes]) -> list[str]:
    return [name for name in find_groups().labs() if name.startswith(f"{run.pid}-")]


def _processes_of_the_nodes(folder: Path) -> list[int]:
    """Return the pids, in this machine's namespace, of the processes that run below a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            content = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in content and b"trainoff" in content:
            found.append(int(place.name))
    return sorted(found)


def test_a_lab_that_is_too_large_is_refused(tmp_path):
    cpus = len(os.sched_getaffinity(0))
    path = study(tmp_path, "numpy", "family", more=lab(nodes=30, cores=cpus / 20))
    done = trainoff("run", path, "--out", tmp_path / "out")
    assert done.returncode == 0  # numpy has one node, and family none
    assert f"30 nodes with {1.5 * cpus:.3g} cores together are more than the {cpus} of" in done.stdout


WITHOUT_ROOT = """
import concurrent.futures.thread, ctypes, os, subprocess
from trainoff.clusters import namespaces  # imported now: the user `nobody` may not read this folder
from trainoff.clusters.lab.cluster import LabNetwork
from trainoff.clusters.lab.register import missing
from trainoff.study.machines import NodeSpec

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # what a start as that user sets
print(missing(), flush=True)
namespaces.unshare(network=True, lab=True)
if os.fork() == 0:
    namespaces.settle(network=True)
    network = LabNetwork([NodeSpec(0.1, None, 100.0)] * 2)
    there = ["nsenter", f"--net=/proc/1/fd/{network.descriptors[1]}", "ip", "-br", "addr", "show", "eth0"]
    os._exit(subprocess.run(there).returncode)
os.wait()
"""


@pytest.mark.root
def test_without_root_the_network_is_made_and_control_groups_must_be_delegated():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOT], capture_output=True, text=True)
    assert "the lab may not make control groups here (Permission denied); run it as root, or where" in done.stdout
    assert "10.77.0.3/16" in done.stdout, done.stderr
