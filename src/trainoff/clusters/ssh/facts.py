"""The facts of a host's Python. The source of this module is sent to hosts and must run on Python 3.7 and later.

There it prints the facts, waits for the agent's configuration, and runs the agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from importlib import util
from pathlib import Path
from typing import Any

MARK = "trainoff-facts "  # begins the line; a login shell may print others


def python_facts(packages: list[str]) -> dict[str, Any]:
    """Return Python's version, that of each package (None if missing), and a hash of trainoff's source."""
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": {name: _version(name) for name in packages},
        "trainoff": _source_hash("trainoff"),
        "connection": os.environ.get("SSH_CONNECTION", "").split(),
    }


def _version(package: str) -> str | None:
    try:
        from importlib import metadata

        return metadata.version(package)
    except ImportError:  # not installed, or this Python is too old
        return None


def _source_hash(package: str) -> str | None:
    found = util.find_spec(package)
    if found is None or not found.origin:
        return None
    folder, digest = Path(found.origin).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    """Print the facts, and run the agent when its configuration is received."""
    request = json.loads(sys.argv[1])
    sys.path[:1] = request["path"]  # replaces the current folder
    if request["path"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(request["path"])
    print(MARK + json.dumps(python_facts(request["packages"])), flush=True)
    config = sys.stdin.buffer.readline()
    if config:
        sys.argv = [request["agent"], config.decode()]
        runpy.run_module(request["agent"], run_name="__main__", alter_sys=True)


if __name__ == "__main__" and sys.argv[0] == "-c":
    main()
