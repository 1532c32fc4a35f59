"""Where an engine runs: kinds of clusters, all start every process in one way."""

from trainoff.clusters.local import THREADS, Attached, Cluster, Node, Process, Readiness

__all__ = ["THREADS", "Attached", "Cluster", "Node", "Process", "Readiness"]
