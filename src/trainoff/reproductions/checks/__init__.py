"""The checks: for every claim that can be tested, what the records of its reproduction must show."""

from trainoff.reproductions.checks import executors, machines, parameters, sync_async

__all__ = ["executors", "machines", "parameters", "sync_async"]
