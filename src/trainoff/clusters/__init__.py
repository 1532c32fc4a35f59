"""Where an engine runs: kinds of clusters, all with one door through which every process starts."""

from trainoff.clusters.attach import Attached
from trainoff.clusters.process import THREADS, Process, Readiness
from trainoff.clusters.processes import Cluster, Node, Processes

__all__ = ["THREADS", "Attached", "Cluster", "Node", "Process", "Processes", "Readiness"]
