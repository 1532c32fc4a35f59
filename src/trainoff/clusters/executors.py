"""How many executors fit on a cluster, and how much memory each gets: a rule of thumb of Spark's users.

One core and 1 GB of every node are left to the system, one executor to the cluster manager, and 2 GB of every
executor's memory to what lies outside its heap.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainoff.errors import TrainoffError

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
