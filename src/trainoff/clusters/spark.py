"""A Spark standalone cluster: a master and workers, started from the pyspark package as processes of a cluster.

An engine connects to its address. pyspark's Python part is not imported here.
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
READY_S = 300.0  # many JVMs that start together are slow
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
    """Spark's configuration and scratch space in the trial's folder, removed with it."""

    trial: Path

    def environment(self, address: str | None) -> dict[str, str]:
        """Return the environment of a Spark process; without an address Spark chooses one."""
        java, local = find_java(), self.trial / "spark" / "local"
        return {
            **({"JAVA_HOME": str(java.home)} if java else {}),
            "SPARK_HOME": str(home()),
            "SPARK_CONF_DIR": NOWHERE,
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),  # removed with the trial, also if a process is killed
            **({"SPARK_LOCAL_IP": address} if address else {}),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": f"{LIGHT_JVM} {self.java_options}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    @property
    def java_options(self) -> str:
        """The options of every JVM: temporary files in the trial's folder, whose path may have spaces, and logging."""
        logging = f"-Dlog4j2.configurationFile={(self._conf / 'log4j2.properties').as_uri()}"
        return f'"-Djava.io.tmpdir={self.trial / "spark" / "local"}" {logging} -XX:-UsePerfData {sharing()}'

    @property
    def properties(self) -> list[str]:
        """The option that names the configuration."""
        return ["--properties-file", str(self._conf / "spark-defaults.conf")]

    @property
    def _conf(self) -> Path:
        return self.trial / "spark" / "conf"

    def configure(self, properties: Mapping[str, str], *, secret: bool) -> None:
        """Write Spark's configuration files, readable by this user only; `secret` turns authentication on."""
        self._conf.mkdir(parents=True)
        (self.trial / "spark" / "local").mkdir()
        (self._conf / "log4j2.properties").write_text(LOGGING)
        ours = {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)} if secret else {}
        path = self._conf / "spark-defaults.conf"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name} {value}\n" for name, value in {**ours, **properties}.items()))


def start_standalone(cluster: Cluster, spark: SparkFolder, cores: int, memory_mb: int) -> str:
    """Start a master, then a worker on every node with these cores and MB for executors.

    Returns the master's address once all workers have registered.
    """
    first, spark_class = cluster.nodes[0], str(home() / "bin" / "spark-class")
    listen = ["--host", first.address, "--port", "0", "--webui-port", "0"]
    master = cluster.spawn(
        first,
        [spark_class, MASTER, *listen, *spark.properties],
        spark.environment(first.address),
        "master",
        ready=lambda process: process.says("Starting Spark master at"),
        timeout_s=READY_S,
    )
    url = re.search(r"Starting Spark master at (spark://\S+)", master.log_text())
    assert url
    workers = []
    for number, node in enumerate(cluster.nodes):
        role = f"worker-{number}"
        offer = ["--host", node.address, "--cores", str(cores), "--memory", f"{memory_mb}m", "--webui-port", "0"]
        # In the folder of logs, because executors write theirs there.
        argv = [spark_class, WORKER, *offer, *spark.properties, "-d", str(spark.trial / "logs" / role), url[1]]
        workers.append(cluster.spawn(node, argv, spark.environment(node.address), role))
    for worker in workers:
        worker.wait_ready(lambda each: each.says("Successfully registered with master"), crowded(READY_S, len(workers)))
    return url[1]


@dataclass(frozen=True)
class SparkDriver:
    """The JVM of a Spark driver, to which pyspark connects."""

    process: Process
    port: int
    secret: str

    @contextmanager
    def address_in_environment(self) -> Iterator[None]:
        """Let pyspark find this driver instead of starting another one."""
        gateway = {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        os.environ.update(gateway)
        try:
            yield
        finally:
            for name in gateway:
                del os.environ[name]


def start_driver(cluster: Cluster, spark: SparkFolder) -> SparkDriver:
    """Start a driver's JVM on this machine, configured by the folder and this process's environment."""
    gateway = spark.trial / "spark" / "gateway"  # where it writes its port and a secret
    process = cluster.spawn(
        cluster.driver_node,
        [str(home() / "bin" / "spark-submit"), *spark.properties, "pyspark-shell"],
        {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway)},
        "driver",
        ready=lambda _: gateway.exists(),
        timeout_s=READY_S,
    )
    content = gateway.read_bytes()
    gateway.unlink()
    port, length = struct.unpack_from(">ii", content)
    return SparkDriver(process, port, content[8 : 8 + length].decode())


def executor_logs(folder: Path) -> list[Path]:
    """Return the logs of a trial's executors, the newest last."""
    return sorted(folder.glob("logs/*/app-*/*/stderr"), key=os.path.getmtime)


SYSTEM_CORES, SYSTEM_GB = 1, 1.0
MANAGER_EXECUTORS = 1
OVERHEAD_GB = 2.0


@dataclass(frozen=True)
class Executors:
    """The number of a cluster's executors, and the cores and memory of each."""

    count: int
    cores: int
    memory_gb: float

    @property
    def memory_mb(self) -> int:
        return int(self.memory_gb * 1024)


def allocate(nodes: int, cores: int, memory_gb: float, executor_cores: int) -> Executors:
    """Return the executors with `executor_cores` that fit on nodes with these cores and GB.

    Executors do not span nodes, so the number per node is rounded down, as is the memory. The document that this
    follows rounds 13.75 GB down to 13 but 10.6 GB up to 11; here it is 10.
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
