"""Where an engine runs: kinds of clusters, all with one door through which every process starts."""

from trainoff.clusters.process import Process, Readiness
from trainoff.clusters.processes import Cluster, Node, Processes

__all__ = ["Cluster", "Node", "Process", "Processes", "Readiness"]
