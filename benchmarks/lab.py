"""The fidelity of the lab: CPU, memory and network of a node against its specification, and the speed of 17 nodes.

    python benchmarks/lab.py [fidelity] [share] [throughput]

fidelity: nodes that compute, fill their memory and send, alone and as one of 17, all at once.
share: the same training on one node with 0.4 and with 1.6 cores.
throughput: synchronous training on 1 and on 17 nodes of 0.1 core each.

It prints ratios of measured to specified values. Takes a minute, a minute and several minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainoff.runner.lab import manage
from trainoff.study.machines import GIB, NodeSpec

WIRE = 1514 / 1448  # bytes on a link for each byte of TCP
BURN = """
import time
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 5: pass
print((time.process_time() - used) / (time.monotonic() - start))
"""
FILL = """
import sys
kept = []
while True:
    kept.append(bytearray(b"1" * 2**20))
    print(len(kept), flush=True)
"""
SERVE = """
import socket, sys
server = socket.create_server(("0.0.0.0", 5000))
print("up", flush=True)
peer, _ = server.accept()
while peer.recv(2**20): pass
"""
SEND = """
import socket, sys, time
connection, start = socket.create_connection((sys.argv[1], 5000)), time.monotonic()
while time.monotonic() - start < 8:
    connection.sendall(bytes(2**16))
"""
STUDY = """
name = "lab"
workload = "mnist-large-mlp"
engines = [{engines}]
targets = []
[params]
epochs = 1
snapshot_every = 1000000000
{params}
[cluster]
kind = "lab"
{cluster}
[limits]
timeout_s = 3600
stall_s = 900
"""
AVERAGING = '[engine.{name}]\nmode = "local"\ntau = 1\n'


@contextmanager
def nodes(spec: NodeSpec, count: int) -> Iterator[list[str]]:
    """Run a lab; yield the addresses of its nodes."""
    entry = manage.up([spec] * count)
    try:
        yield [node.address for node in entry.plan.nodes]
    finally:
        manage.down()


def start(node: int, program: str, *arguments: str) -> subprocess.Popen[str]:
    argv = manage.enter_command(str(node), [sys.executable, "-c", program, *arguments], None)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate()[0]


def fidelity(count: int) -> None:
    """Measure CPU, then memory, then network, on all nodes at once."""
    cores, memory = 1.7 / 17, 0.25
    with nodes(NodeSpec(cores, memory, 50.0), count) as addresses:
        burning = [start(node, BURN) for node in range(count)]
        print_ratios("CPU share", count, [float(output_of(each)) / cores for each in burning])
    with nodes(NodeSpec(2 / count, memory, 50.0), count) as addresses:
        filling = [start(node, FILL) for node in range(count)]
        print_ratios("memory", count, [int(output_of(each).split()[-1]) * 2**20 / (memory * GIB) for each in filling])
    if count > 1:
        with nodes(NodeSpec(2 / count, None, 50.0), count) as addresses:
            print_ratios("bandwidth", count, list(bandwidths(addresses)))


def bandwidths(addresses: Sequence[str]) -> Iterator[float]:
    """Let every node send to the next one; yield what each sent by its link's counter, relative to the bandwidth.

    The kernel counts large packets, but the link is charged for the small ones that they are split into, each with its
    headers.
    """
    servers = [start(node, SERVE) for node in range(len(addresses))]
    for server in servers:
        assert server.stdout
        assert server.stdout.readline()
    senders = [start(node, SEND, addresses[(node + 1) % len(addresses)]) for node in range(len(addresses))]
    time.sleep(3.0)  # until all are connected
    before, began = [row["sent_bytes"] for row in manage.status()], time.monotonic()
    time.sleep(3.0)
    after, passed = [row["sent_bytes"] for row in manage.status()], time.monotonic() - began
    for each in (*senders, *servers):
        output_of(each)
    yield from (8 * (last - first) * WIRE / passed / 50e6 for first, last in zip(before, after, strict=True))


def print_ratios(what: str, count: int, ratios: Sequence[float]) -> None:
    print(f"{what:>10} at {count:2} nodes: {statistics.median(ratios):.3f} of what was specified "
          f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)  # fmt: skip


def train(engines: Sequence[str], params: str, cluster: str, more: str = "") -> list[dict[str, Any]]:
    """Run a study in a lab; return its records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lab.toml")
        named = ", ".join(f'"{engine}"' for engine in engines)
        path.write_text(STUDY.format(engines=named, params=params, cluster=cluster) + more)
        subprocess.run([sys.executable, "-m", "trainoff", "run", path, "--out", folder], check=False)
        return [json.loads(file.read_text()) for file in Path(folder).glob("lab/*/record.json")]


def share() -> None:
    """Print how many times as long the same training takes on a node with 0.4 core as on one with 1.6.

    Nearly all of it is products of large matrices, which two threads share well.
    """
    large = "train_rows = 20000\nbatch_size = 4000\nhidden = [2000, 2000]"
    rows = train(["numpy", "torch"], large, "", "[grid]\ncores = [0.4, 1.6]")
    took = {(row["engine"], row["cores"]): float(row["train_s"]) for row in rows}
    for engine in ("numpy", "torch"):
        print(
            f"{engine}: 0.4 core takes {took[engine, 0.4] / took[engine, 1.6]:.2f} times as long as 1.6 (specified: 4)"
        )


def throughput() -> None:
    """Print the rows per second of 17 nodes relative to one, and how the time was spent."""
    engines = ["torch-ddp", "tf-allreduce", "tf-ps", "dask-average", "spark-average"]
    cluster = "cores = 0.1\nbandwidth_mbit = 1000"
    first, others = "{ memory_gb = 3 }", "{ memory_gb = 1.3 }"  # the first has driver, master and a worker
    sizes = ([first], [first] + [others] * 16)
    more = "".join(f"[[case]]\nnodes = [{', '.join(nodes)}]\n" for nodes in sizes)
    more += "".join(AVERAGING.format(name=name) for name in engines[3:])
    rows = train(engines, 'mode = "sync"\nbatch_per = "worker"\nbatch_size = 6000', cluster, more)
    for engine in engines:
        speed = {row["workers"]: row["samples_per_s"] for row in rows if row["engine"] == engine}
        if all(speed.get(count) for count in (1, 17)):
            print(f"{engine}: 17 nodes make {speed[17] / speed[1]:.1f} times the rows per second of one")
        for row in rows:
            if row["engine"] == engine:
                print("   ", row["workers"], row["status"], row["reason"] or "", _time_text(row))


def _time_text(row: dict[str, Any]) -> str:
    parts = row["breakdowns"]
    means = {name: statistics.fmean(each.values()) for name, each in parts.items() if name.endswith("_s")}
    throttled = statistics.fmean(node["training"].get("throttled_s", 0.0) for node in row["nodes"])
    means_text = ", ".join(f"{name} {value:.1f}" for name, value in means.items())
    return f"train {row['train_s']} s, {means_text}, throttled {throttled:.1f} s a node"


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["fidelity", "share", "throughput"]
    if "fidelity" in chosen:
        for count in (1, 2, 17):
            fidelity(count)
    if "share" in chosen:
        share()
    if "throughput" in chosen:
        throughput()
