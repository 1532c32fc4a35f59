"""The checks: for every claim that can be tested, what the records of its reproduction must show."""

from trainoff.reproductions.checks import batches, executors, machines, parameters, sync_async

__all__ = ["batches", "executors", "machines", "parameters", "sync_async"]
