"""Stands in for pyspark.daemon on the executors: it forks the Python workers.

Spark puts its archives on Python's search path, one of them a jar of thousands of files, and before every task asks
Python to read their directories again: 0.4 seconds a task. pyspark itself is installed, so they are not needed.
"""

from __future__ import annotations

import sys


def in_archive(path: str) -> bool:
    """Whether a place that Python searches lies in a jar or a zip."""
    return ".jar" in path or ".zip" in path


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not in_archive(path)]
    sys.modules.pop("org", None)  # the standard library looks for Jython's by this name, and finds the jar
    for path in filter(in_archive, list(sys.path_importer_cache)):
        del sys.path_importer_cache[path]

    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]  # pyspark has no types for it
