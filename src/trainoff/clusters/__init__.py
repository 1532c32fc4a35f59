"""Where an engine runs: kinds of clusters, all with one door through which every process starts."""

from trainoff.clusters.local import THREADS, Attached, Cluster, Node, Process, Processes, Readiness

__all__ = ["THREADS", "Attached", "Cluster", "Node", "Process", "Processes", "Readiness"]
