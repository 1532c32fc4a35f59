"""Where an engine runs: kinds of clusters, all with one door through which every process starts."""

from trainoff.clusters.attach import Attached
from trainoff.clusters.local import Cluster, Node, Processes
from trainoff.clusters.process import THREADS, Process, Readiness

__all__ = ["THREADS", "Attached", "Cluster", "Node", "Process", "Processes", "Readiness"]
