"""The checks: for every claim that can be tested, what to look for in the records. One file per reproduction."""

from trainoff.reproductions.checks import agreement, batches, executors, machines, parameters
from trainoff.reproductions.checks import parameters as on_spark

__all__ = ["agreement", "batches", "executors", "machines", "on_spark", "parameters"]
