"""What a Python says of itself. Sent to the hosts as it stands here, where any Python since 3.7 must be able to run it.

There it tells the facts, waits for the word to go on, and becomes the guard.
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

MARK = "trainoff-facts "  # before the line; a login shell may have said something, too


def python_facts(packages: list[str]) -> dict[str, Any]:
    """Its version, that of each package (null where there is none), and a hash of trainoff's source."""
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": {name: _version(name) for name in packages},
        "trainoff": _source_of("trainoff"),
        "connection": os.environ.get("SSH_CONNECTION", "").split(),
    }


def _version(package: str) -> str | None:
    try:
        from importlib import metadata

        return metadata.version(package)
    except ImportError:  # it is not installed, or this Python is too old to tell
        return None


def _source_of(package: str) -> str | None:
    found = util.find_spec(package)
    if found is None or not found.origin:
        return None
    folder, digest = Path(found.origin).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    """Tell the facts, and be the guard once told its orders."""
    asked = json.loads(sys.argv[1])
    sys.path[:1] = asked["path"]  # before it, the folder in which this was started
    if asked["path"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(asked["path"])
    print(MARK + json.dumps(python_facts(asked["packages"])), flush=True)
    orders = sys.stdin.buffer.readline()
    if orders:
        sys.argv = [asked["guard"], orders.decode()]
        runpy.run_module(asked["guard"], run_name="__main__", alter_sys=True)


if __name__ == "__main__" and sys.argv[0] == "-c":
    main()
