"""A bare loop over TensorFlow's ParameterServerStrategy and ClusterCoordinator, as its guide writes one.

    python benchmarks/bare/servers_loop.py WORKERS BATCH UPDATES

It starts its own servers, trains a 784-800-10 perceptron on one constant batch, and prints updates per second. The
batch is part of the graph, so that an update only pulls, computes and pushes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SERVE = "trainoff.engines.tf_cluster.serve"


def start_servers(workers: int) -> tuple[list[subprocess.Popen[str]], dict[str, list[str]]]:
    """Start workers and a parameter server; return them and their addresses."""
    processes: list[subprocess.Popen[str]] = []
    addresses: dict[str, list[str]] = {"worker": [], "ps": []}
    for kind, number in [*(("worker", at) for at in range(workers)), ("ps", 0)]:
        argv = [sys.executable, "-m", SERVE, kind, str(number), "1", "127.0.0.1"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout
        addresses[kind].append(f"127.0.0.1:{process.stdout.readline().split()[-1]}")
        processes.append(process)
    return processes, addresses


def main() -> None:
    workers, batch, updates = map(int, sys.argv[1:])
    processes, addresses = start_servers(workers)
    try:
        print(measure(addresses, batch, updates), flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    os._exit(0)  # the coordinator's threads would wait for the ended servers


def measure(addresses: dict[str, list[str]], batch: int, updates: int) -> float:
    """Return the updates per second, after some to warm up."""
    import tensorflow as tf

    from trainoff.clusters.local import free_ports

    tf.config.threading.set_intra_op_parallelism_threads(1)
    cluster = {**addresses, "chief": [f"127.0.0.1:{free_ports(['127.0.0.1'])[0]}"]}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        shapes = [(784, 800), (800,), (800, 10), (10,)]
        weights = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step() -> object:
        x, y = tf.fill([batch, 784], 0.5), tf.zeros([batch], tf.int64)
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(x, weights[0]) + weights[1])
            scores = tf.matmul(hidden, weights[2]) + weights[3]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return loss

    for count in (20, updates):
        start = time.monotonic()
        for _ in range(count):
            coordinator.schedule(step)
        coordinator.join()
    return updates / (time.monotonic() - start)


if __name__ == "__main__":
    main()
