"""The clusters on which engines start processes, with one interface for all kinds."""

from trainoff.clusters.local import THREADS, Attached, Cluster, Node, Process, Readiness

__all__ = ["THREADS", "Attached", "Cluster", "Node", "Process", "Readiness"]
