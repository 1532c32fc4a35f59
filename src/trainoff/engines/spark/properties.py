"""What Spark is told: as few bytes and as little waiting as it can do with, and nothing in the dark."""

from __future__ import annotations

from trainoff.clusters import THREADS
from trainoff.clusters.java import LIGHT_JVM
from trainoff.clusters.spark import Executors

DRIVER_MB = 2048


def common(executors: Executors, java: str, whole_executors: bool) -> dict[str, str]:
    """On every cluster; `whole_executors` if a task takes all cores of its executor."""
    return {
        "spark.driver.memory": f"{DRIVER_MB}m",
        "spark.driver.maxResultSize": "0",
        "spark.driver.extraJavaOptions": f"{java} {LIGHT_JVM}",
        "spark.executor.cores": str(executors.cores),
        "spark.executor.instances": str(executors.count),
        "spark.executor.memory": f"{executors.memory_mb}m",
        "spark.cores.max": str(executors.count * executors.cores),
        "spark.dynamicAllocation.enabled": "false",
        "spark.task.cpus": str(executors.cores if whole_executors else 1),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "1000000",  # they are counted
        # Weights do not compress, and a result that fits is sent at once instead of being asked for.
        "spark.broadcast.compress": "false",
        "spark.task.maxDirectResultSize": "64m",
        # Between a JVM and its own Python nothing travels over the network. The path is relative, because the trial's
        # folder may be too deep for the 107 characters of a socket's address.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": ".",
        # Too few slots are said in seconds.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
        **{f"spark.executorEnv.{name}": str(executors.cores) for name in THREADS},
    }


def of_own_cluster(java: str, whole_executors: bool, here: str) -> dict[str, str]:
    """Besides, on a cluster that the trial starts for itself; `here` is the driver's address."""
    alone = here == "127.0.0.1"
    return {
        "spark.master.rest.enabled": "false",  # nobody hands in applications that way
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        # Where Python does the work, the compilers of the JVMs should not take the cores from it.
        "spark.executor.extraJavaOptions": f"{java} {LIGHT_JVM}" if whole_executors else java,
        # Else gloo asks for the machine's name, often in vain.
        **({"spark.executorEnv.GLOO_SOCKET_IFNAME": "lo"} if alone else {}),
        "spark.python.daemon.module": "trainoff.engines.spark.daemon",
    }
