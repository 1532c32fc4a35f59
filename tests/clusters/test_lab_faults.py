"""Every fault of an emulated node, in a lab of two nodes with a server on the second."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.cluster]

SCRIPT = r"""
import json, os, subprocess, sys, time
from pathlib import Path
import psutil
from trainoff.clusters.lab.cluster import LabCluster
from trainoff.clusters import namespaces
from trainoff.clusters.lab.register import LabCgroups
from trainoff.runner.lab.supervisor import Lab, LabTargets
from trainoff.errors import TrainoffError
from trainoff.study.machines import NodeSpec

folder, found = Path(sys.argv[1]), {}
SERVE = "import socket; s = socket.create_server(('0.0.0.0', 5000)); print('up', flush=True)\nwhile True: s.accept()"
CALL = "import socket; socket.create_connection(('10.77.0.3', 5000), {}).close()"
HANGS_S, SHORT_S = 300.0, 1  # the timeouts of what must happen, and of a connection that must fail


def until(condition):
    end = time.monotonic() + HANGS_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def connects(cluster, seconds=HANGS_S):
    call = cluster.spawn(cluster.nodes[0], [sys.executable, "-c", CALL.format(seconds)], {}, "caller")
    return call.wait(2 * HANGS_S) == 0


def rate():
    shown = subprocess.run(["tc", "qdisc", "show", "dev", "node1"], capture_output=True, text=True).stdout
    return shown.partition("rate ")[2].split()[0]


def states(targets):
    return sorted({psutil.Process(pid).status() for pid in targets.pids(1)})


def try_all(groups):
    namespaces.settle(network=True)
    lab = Lab(groups.plan, folder)
    targets, cluster = LabTargets(None, lab), LabCluster(lab.plan, folder)
    ready = lambda each: each.says("up")
    cluster.spawn(cluster.nodes[1], [sys.executable, "-c", SERVE], {}, "worker-1", ready=ready)
    found["reached"] = connects(cluster)
    targets.cut(1)
    found["reached when cut"] = connects(cluster, SHORT_S)
    targets.heal(1)
    found["reached when healed"] = connects(cluster)
    found["rates"] = [rate()]
    targets.limit(1, 1.0)
    found["rates"] += [rate()]
    targets.unlimit(1)
    found["rates"] += [rate()]
    with cluster.timed():
        targets.slow(1, 0.5)
        found["slow"] = lab.groups[1].throttled
        spinner = cluster.spawn(cluster.nodes[1], [sys.executable, "-c", "while True: pass"], {}, "worker-1")
        until(lambda: lab.groups[1].usage().throttled_s > 0)
        found["throttled for"] = lab.groups[1].usage().throttled_s
        cluster.end(spinner)
    targets.restore_speed(1)
    found["throttled when it is over"] = lab.groups[1].throttled
    targets.pause(1)
    until(lambda: states(targets) == ["stopped"])
    found["paused"] = states(targets)
    targets.resume(1)
    until(lambda: "stopped" not in states(targets))
    found["resumed"] = states(targets)
    targets.fill(1)
    until(lambda: lab.groups[1].usage().memory_bytes >= 0.9 * 2**28)
    found["filled"] = lab.groups[1].usage().memory_bytes / 2**28
    targets.kill(1)
    until(lambda: not targets.pids(1))
    found["left"] = targets.pids(1)
    try:
        cluster.spawn(cluster.nodes[1], ["true"], {}, "worker-1")
    except TrainoffError as error:
        found["started again"] = str(error)
    (folder / "found.json").write_text(json.dumps(found))


groups = LabCgroups([NodeSpec(0.3, 0.25, 100.0)] * 2)
namespaces.unshare(network=True, lab=True)
if (inner := os.fork()) == 0:
    try:
        try_all(groups)
    finally:
        os._exit(0)
os.waitpid(inner, 0)
groups.close()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True, timeout=1800)
    assert (folder / "found.json").exists(), done.stderr
    return json.loads((folder / "found.json").read_text())


def test_cut_and_heal(found):
    assert [found[name] for name in ("reached", "reached when cut", "reached when healed")] == [True, False, True]


def test_limit_and_unlimit(found):
    assert found["rates"] == ["100Mbit", "1Mbit", "100Mbit"]


def test_slow_until_the_timed_part_is_over(found):
    assert (found["slow"], found["throttled when it is over"]) == (True, False)
    assert found["throttled for"] > 0


def test_pause_and_resume(found):
    assert found["paused"] == ["stopped"]
    assert "stopped" not in found["resumed"]


def test_fill_memory(found):
    assert 0.9 < found["filled"] <= 1


def test_kill_a_node(found):
    assert (found["left"], found["started again"]) == ([], "worker-1 could not be started: node-1 is gone")
