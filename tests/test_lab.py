"""The lab for real: nodes with addresses, shares, limits and links of their own, and nothing left of them."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from running import assert_nothing_survives, command, environment, kill_choice, only_record, study, trainoff, wait_until
from trainoff.clusters.lab.groups import find_groups
from trainoff.clusters.lab.register import folder, owned

LAB = """
[cluster]
kind = "lab"
cores = 0.3
memory_gb = {memory}
bandwidth_mbit = 200
nodes = {nodes}
"""
MOMENTS = [
    *(pytest.param(number, id=f"moment{number}") for number in range(5)),
    *(pytest.param(number, id=f"moment{number}", marks=pytest.mark.soak) for number in range(5, 100)),
]

pytestmark = pytest.mark.lab


def lab(nodes: int, memory: float = 1.0) -> str:
    return LAB.format(nodes=nodes, memory=memory)


def traces() -> dict[str, list[str]]:
    """What a lab could leave on the machine outside its own namespaces."""
    links = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout
    return {
        "links": sorted(link["ifname"] for link in json.loads(links)),
        "mounts": sorted(set(Path("/proc/self/mounts").read_text().splitlines())),
        "named namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
        "groups of the dead": [name for name in find_groups().labs() if not owned(name)],
        "notes of the dead": [path.name for path in folder().glob("*.json") if not owned(path.stem)],
    }


def everything() -> dict[str, list[str]]:
    """Those traces, and every process, port and network namespace: for tests that have the machine to themselves."""
    listening = [link.laddr for link in psutil.net_connections("inet") if link.status == psutil.CONN_LISTEN]
    there = [(each.info["pid"], each.info["cmdline"]) for each in psutil.process_iter(["pid", "cmdline"])]
    return traces() | {
        "processes": [f"{pid} {' '.join(words)}" for pid, words in there if words],  # the kernel's own have no words
        "ports": [f"{address.ip}:{address.port}" for address in listening],
        "namespaces": [place for pid, _ in there if (place := _network_of(pid))],
    }


def _network_of(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return None  # it has ended meanwhile


def assert_no_new_trace(before: dict[str, list[str]], look: Callable[[], dict[str, list[str]]] = traces) -> None:
    """Nothing is left that was not there before; what other tests' labs leave for a moment is waited for."""
    end = time.monotonic() + 20
    while new := {kind: left for kind, now in look().items() if (left := set(now) - set(before[kind]))}:
        assert time.monotonic() < end, new
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def the_machine_is_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """After all kills of a soak, which has the machine to itself, the whole machine is as it was before."""
    before = everything() if request.config.option.markexpr == "soak" else None
    yield
    if before:
        assert_no_new_trace(before, everything)


@pytest.fixture
def up():
    """A lab of two nodes that was started by hand."""
    before = traces()
    done = trainoff("lab", "up", "--nodes", "2", "--cores", "0.2", "--memory-gb", "0.25", "--bandwidth-mbit", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    yield
    assert trainoff("lab", "down").returncode == 0
    assert_no_new_trace(before)


def test_a_lab_to_play_with(up):
    again = trainoff("lab", "up")
    assert (again.returncode, "is up already" in again.stderr) == (2, True)
    there = trainoff("lab", "exec", "node-1", "--", "ip", "-json", "addr", "show", "eth0")
    (address,) = [each["local"] for each in json.loads(there.stdout)[0]["addr_info"] if each["family"] == "inet"]
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    assert [node["node"] for node in nodes] == ["node-0", "node-1"]
    assert nodes[1]["address"] == address
    assert nodes[1]["memory_limit_bytes"] == 2**28
    greedy = trainoff("lab", "exec", "0", "--", sys.executable, "-c", "print(len(bytearray(2**29)))")
    assert greedy.returncode == -9, "the kernel did not keep the node's memory in bounds"
    assert "it has node-0 to node-1" in trainoff("lab", "exec", "7", "--", "true").stderr


CALL = "import socket; socket.create_connection(('{}', 5000), 5).sendall(b'hello')"
ANSWER = (
    "import socket; s = socket.create_server(('0.0.0.0', 5000)); print('up', flush=True); print(s.accept()[0].recv(5))"
)


def test_nodes_reach_each_other_and_nobody_else(up):
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    words = command("lab", "exec", "1", "--", sys.executable, "-c", ANSWER)
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment(), text=True) as server:
        assert server.stdout.readline() == "up\n"
        called = trainoff("lab", "exec", "0", "--", sys.executable, "-c", CALL.format(nodes[1]["address"]))
        assert (called.returncode, server.stdout.read()) == (0, "b'hello'\n")
    away = trainoff("lab", "exec", "0", "--", sys.executable, "-c", CALL.format("192.0.2.1"))
    assert "Network is unreachable" in away.stderr


BEAT = """
import sys, time
while True:
    print(time.monotonic(), flush=True)
    time.sleep(0.05)
"""


def test_a_hand_on_the_nodes(up):
    nodes = json.loads(trainoff("lab", "status", "--json").stdout)
    words = command("lab", "exec", "1", "--", sys.executable, "-c", BEAT)
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment(), text=True) as beating:
        first = float(beating.stdout.readline())
        assert trainoff("lab", "pause", "1").stdout == "pause: node-1 of lab\n"
        time.sleep(1.0)
        assert trainoff("lab", "resume", "node-1").returncode == 0
        times = [first, *(float(beating.stdout.readline()) for _ in range(60))]
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 0.9
        assert trainoff("lab", "slow", "1", "--share", "0.5").returncode == 0
        assert trainoff("lab", "kill", "1").returncode == 0
        assert beating.wait(20) == -9
    call = ["lab", "exec", "0", "--", sys.executable, "-c", CALL.format(nodes[1]["address"])]
    assert "Connection refused" in trainoff(*call).stderr  # it is there, and nobody listens
    assert trainoff("lab", "cut", "1").returncode == 0
    assert "Connection refused" not in (cut := trainoff(*call).stderr)
    assert "timed out" in cut or "No route to host" in cut
    assert trainoff("lab", "heal", "1").returncode == 0
    assert "Connection refused" in trainoff(*call).stderr
    assert "--share 2: expected a number above 0" in trainoff("lab", "slow", "1", "--share", "2").stderr


def test_the_keeper_is_killed_and_nothing_is_left():
    before = traces()
    assert trainoff("lab", "up", "--nodes", "2", "--cores", "0.1").returncode == 0
    (name,) = {node["lab"] for node in json.loads(trainoff("lab", "status", "--json").stdout)}
    subprocess.run(["kill", "-9", name.partition("-")[0]], check=True)
    wait = time.monotonic() + 20
    while owned(name) and time.monotonic() < wait:
        time.sleep(0.05)
    assert trainoff("lab", "down").returncode == 0
    assert name not in find_groups().labs()
    assert_no_new_trace(before)


def test_a_training_on_two_nodes(tmp_path):
    path = study(tmp_path, "torch-ddp", more=lab(nodes=2))
    done = trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert (record["status"], record["equivalence"]["verdict"]) == ("ok", "exact"), done.stdout
    assert (record["cluster"], record["workers"], record["cores"]) == ("lab", 2, 0.3)
    sent = [node["sent_bytes"] for node in record["nodes"]]
    assert record["network_bytes"] == pytest.approx(sum(sent), rel=0.01)
    assert all(node["training"]["sent_bytes"] > record["model"]["parameters"] * 4 for node in record["nodes"])
    assert all(0 < node["peak_memory_bytes"] < 2**30 for node in record["nodes"])
    assert sum(node["training"]["throttled_s"] for node in record["nodes"]) > 0
    assert record["network_bytes_by_role"]["worker-1"]["sent"] > 0
    shown = trainoff("show", next((tmp_path / "out" / "tiny").glob("torch-ddp*")))
    assert "200 Mbit/s" in shown.stdout


def labs_of_trials() -> list[str]:
    rows = json.loads(trainoff("lab", "status", "--json").stdout)
    return [row["lab"] for row in rows if "family" in row["about"]]


def test_a_hand_on_a_running_trial_is_in_its_record(tmp_path):
    path = study(tmp_path, "family", more=lab(nodes=2))
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 100000"))
    run = subprocess.Popen(
        command("run", path, "--out", tmp_path / "out"), env=environment(), stdout=subprocess.DEVNULL
    )
    wait_until(labs_of_trials, run)
    slowed = trainoff("lab", "slow", "1", "--lab", labs_of_trials()[0])
    run.send_signal(signal.SIGINT)
    run.wait(60)
    assert slowed.returncode == 0, slowed.stderr
    assert "by hand: slow node-1" in only_record(tmp_path / "out")["notes"]


def test_a_node_without_enough_memory_says_so_with_the_figure(tmp_path):
    path = study(tmp_path, "glutton", more=lab(nodes=1, memory=0.2))
    trainoff("run", path, "--out", tmp_path / "out")
    record = only_record(tmp_path / "out")
    assert record["status"] == "out-of-memory"
    assert record["reason"] == "node-0 used 0.20 GiB of its 0.2 GiB"
    assert record["nodes"][0]["oom_kills"] >= 1


@pytest.mark.parametrize("number", MOMENTS)
def test_a_lab_run_is_killed_at_any_moment(tmp_path, number):
    before, choice = traces(), kill_choice(f"lab {number}")
    path = study(tmp_path, "family", more=lab(nodes=3))
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 200"))
    run = subprocess.Popen(
        command("run", path, "--out", tmp_path / "out"), env=environment(), stdout=subprocess.DEVNULL
    )
    wait_until(lambda: (tmp_path / "out" / "tiny" / ".staging").exists(), run)
    time.sleep(choice.uniform(0.0, 3.0))
    inside = [pid for pid in _processes_of_the_nodes(tmp_path) if pid != run.pid]
    conductor = number % 2 == 0 or not inside
    subprocess.run(["kill", "-9", str(run.pid if conductor else choice.choice(inside))], check=False)
    run.wait(120)
    if conductor:
        assert trainoff("lab", "down").returncode == 0
    assert_nothing_survives(tmp_path)  # where the conductor lives, it has cleared up itself
    assert [name for name in find_groups().labs() if name.startswith(f"{run.pid}-")] == []
    assert_no_new_trace(before)


def _processes_of_the_nodes(folder: Path) -> list[int]:
    """What runs below the folder of a trial, as this machine numbers it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and b"trainoff" in words:
            found.append(int(place.name))
    return sorted(found)


def test_what_cannot_be_emulated_is_refused_in_one_sentence(tmp_path):
    path = study(tmp_path, "numpy", "family", more=lab(nodes=30))
    done = trainoff("run", path, "--out", tmp_path / "out")
    assert done.returncode == 0  # numpy has one node, and family none
    assert "30 nodes with 9 cores together are more than the" in done.stdout


AS_NOBODY = """
import concurrent.futures.thread, ctypes, os, subprocess
from trainoff.clusters.lab import able
from trainoff.clusters.lab.network import Network
from trainoff.conduct import isolate
from trainoff.study.nodes import NodeSpec

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as if it had been started so
print(able.missing(), flush=True)
isolate.unshare(network=True, lab=True)
if os.fork() == 0:
    isolate.settle(network=True)
    network = Network([NodeSpec(0.1, None, 100.0)] * 2)
    there = ["nsenter", f"--net=/proc/1/fd/{network.descriptors[1]}", "ip", "-br", "addr", "show", "eth0"]
    os._exit(subprocess.run(there).returncode)
os.wait()
"""


@pytest.mark.root
def test_without_root_the_network_is_made_and_the_groups_must_be_handed_over():
    done = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True)
    assert "the lab may not make control groups here (Permission denied); run it as root, or where" in done.stdout
    assert "10.77.0.3/16" in done.stdout, done.stderr
