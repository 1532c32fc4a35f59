"""A replacement of pyspark.daemon, which forks the Python workers of an executor.

Spark puts its archives on Python's search path, one of them a jar of thousands of files, and has Python read their
directories again before every task: 0.4 seconds per task. pyspark is installed, so they are not needed.
"""

from __future__ import annotations

import sys


def in_archive(path: str) -> bool:
    """Return whether an entry of the search path is in a jar or a zip."""
    return ".jar" in path or ".zip" in path


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not in_archive(path)]
    sys.modules.pop("org", None)  # imported from the jar, because the standard library looks for Jython
    for path in filter(in_archive, list(sys.path_importer_cache)):
        del sys.path_importer_cache[path]

    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]  # pyspark has no types for it
