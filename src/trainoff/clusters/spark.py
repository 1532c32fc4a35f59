"""A Spark standalone cluster: a master and its workers, started from the pyspark package as processes of a cluster.

It knows nothing of pyspark's Python side; an engine connects to its address.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainoff.clusters.java import LIGHT_JVM, NOWHERE, find_java, home, sharing
from trainoff.clusters.local import Cluster, Process, crowded
from trainoff.errors import TrainoffError

PRIVATE_FILES = ("spark/local/*", "spark/gateway")  # in the trial's folder, not to be copied to other machines
READY_S = 300.0  # JVMs start slowly where many start at once
DAEMON_MEMORY = "512m"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
logger.runner.name = org.apache.spark.deploy.worker.ExecutorRunner
logger.runner.level = warn
"""


@dataclass(frozen=True)
class SparkFolder:
    """Where Spark has its configuration and scratch space: below the folder of the trial, and gone with it."""

    trial: Path

    def environment(self, address: str | None) -> dict[str, str]:
        """What a process of Spark needs in its environment; without an address it finds its own."""
        java, local = find_java(), self.trial / "spark" / "local"
        return {
            **({"JAVA_HOME": str(java.home)} if java else {}),
            "SPARK_HOME": str(home()),
            "SPARK_CONF_DIR": NOWHERE,
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),  # so that what is left there when somebody is killed goes with the trial
            **({"SPARK_LOCAL_IP": address} if address else {}),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": f"{LIGHT_JVM} {self.java_options}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    @property
    def java_options(self) -> str:
        """For every JVM: temporary files stay in the trial. In quotes, for there may be spaces in the path."""
        logging = f"-Dlog4j2.configurationFile={(self._conf / 'log4j2.properties').as_uri()}"
        return f'"-Djava.io.tmpdir={self.trial / "spark" / "local"}" {logging} -XX:-UsePerfData {sharing()}'

    @property
    def properties(self) -> list[str]:
        """The option by which a process of Spark is told what is configured."""
        return ["--properties-file", str(self._conf / "spark-defaults.conf")]

    @property
    def _conf(self) -> Path:
        return self.trial / "spark" / "conf"

    def configure(self, properties: Mapping[str, str], *, secret: bool) -> None:
        """Write Spark's configuration files, readable by nobody else; `secret` makes one for the cluster's own use."""
        self._conf.mkdir(parents=True)
        (self.trial / "spark" / "local").mkdir()
        (self._conf / "log4j2.properties").write_text(LOGGING)
        ours = {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)} if secret else {}
        path = self._conf / "spark-defaults.conf"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name} {value}\n" for name, value in {**ours, **properties}.items()))


def start_standalone(cluster: Cluster, spark: SparkFolder, cores: int, memory_mb: int) -> str:
    """Start a master, then a worker on every node with so many cores and MB for executors.

    Returns the master's address once all workers have registered.
    """
    first = cluster.nodes[0]
    listen = ["--host", first.address, "--port", "0", "--webui-port", "0"]
    master = cluster.spawn(
        first,
        [*_class(MASTER), *listen, *spark.properties],
        spark.environment(first.address),
        "master",
        ready=lambda process: process.says("Starting Spark master at"),
        timeout_s=READY_S,
    )
    url = _said(master, r"Starting Spark master at (spark://\S+)")
    workers = []
    for number, node in enumerate(cluster.nodes):
        role = f"worker-{number}"
        offer = ["--host", node.address, "--cores", str(cores), "--memory", f"{memory_mb}m", "--webui-port", "0"]
        # Beside the logs, because the executors write theirs there.
        argv = [*_class(WORKER), *offer, *spark.properties, "-d", str(spark.trial / "logs" / role), url]
        workers.append(cluster.spawn(node, argv, spark.environment(node.address), role))
    for worker in workers:
        worker.wait_ready(lambda each: each.says("Successfully registered with master"), crowded(READY_S, len(workers)))
    return url


@dataclass(frozen=True)
class SparkDriver:
    """The JVM of a Spark driver, waiting for a Python to connect."""

    process: Process
    port: int
    secret: str

    @contextmanager
    def address_in_environment(self) -> Iterator[None]:
        """While this lasts, pyspark finds the driver instead of starting one of its own."""
        told = {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        os.environ.update(told)
        try:
            yield
        finally:
            for name in told:
                del os.environ[name]


def start_driver(cluster: Cluster, spark: SparkFolder) -> SparkDriver:
    """Start a driver's JVM beside this process, with what is configured in the folder and in this environment."""
    told = spark.trial / "spark" / "gateway"  # where it writes its port and a secret
    process = cluster.spawn(
        cluster.driver_node,
        [str(home() / "bin" / "spark-submit"), *spark.properties, "pyspark-shell"],
        {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
        "driver",
        ready=lambda _: told.exists(),
        timeout_s=READY_S,
    )
    content = told.read_bytes()
    told.unlink()
    port, length = struct.unpack_from(">ii", content)
    return SparkDriver(process, port, content[8 : 8 + length].decode())


def _class(name: str) -> list[str]:
    return [str(home() / "bin" / "spark-class"), name]


def executor_logs(folder: Path) -> list[Path]:
    """What the executors of a trial have said, the newest last."""
    found = folder.glob("logs/*/app-*/*/stderr")
    return sorted(found, key=os.path.getmtime)


def _said(process: Process, pattern: str) -> str:
    found = re.search(pattern, process.log.read_text(errors="replace"))
    if not found:
        raise TrainoffError(f"{process.role} did not say {pattern!r}:\n{process.tail()}")
    return found[1]


SYSTEM_CORES, SYSTEM_GB = 1, 1.0
MANAGER_EXECUTORS = 1
OVERHEAD_GB = 2.0


@dataclass(frozen=True)
class Executors:
    """The executors of a cluster: how many in all, and the cores and memory of each."""

    count: int
    cores: int
    memory_gb: float

    @property
    def memory_mb(self) -> int:
        return int(self.memory_gb * 1024)


def allocate(nodes: int, cores: int, memory_gb: float, executor_cores: int) -> Executors:
    """The executors that fit on so many nodes of so many cores and GB, each with `executor_cores`.

    Executors do not span nodes, so each node's are counted by themselves and rounded down, as is the memory. The
    document that this follows rounds 13.75 GB down to 13 and 10.6 GB up to 11; rounded down, the second is 10.
    """
    per_node = (cores - SYSTEM_CORES) // executor_cores
    count = per_node * nodes - MANAGER_EXECUTORS
    if count < 1:
        raise TrainoffError(
            f"no executor of {executor_cores} cores fits: {nodes} nodes of {cores} cores, less one core each for the "
            f"system, hold {max(per_node, 0) * nodes}, and one is the cluster manager's; take fewer executor_cores"
        )
    memory = int((memory_gb - SYSTEM_GB) / per_node - OVERHEAD_GB)
    if memory < 1:
        raise TrainoffError(
            f"{memory_gb:g} GB on a node are too little for {per_node} executors, which need 3 GB each and 1 GB for "
            "the system; take more memory_gb or more executor_cores"
        )
    return Executors(count, executor_cores, memory)
