"""trainoff itself on its way to machines that do not have it, and a look at what they have."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trainoff


def look(modules: Sequence[str]) -> Callable[[], dict[str, Any]]:
    """What a worker's Python tells of itself. Sent as it is, because trainoff may not be there to be imported."""
    wanted = ("trainoff", *modules)

    def tell() -> dict[str, Any]:
        import importlib.util
        import platform
        import sys

        lacks = [name for name in wanted if importlib.util.find_spec(name) is None]
        return {"python": sys.executable, "version": platform.python_version(), "host": platform.node(), "lacks": lacks}

    return tell


def as_archive(folder: Path) -> str:
    """trainoff itself as a zip file, made in a folder."""
    source = Path(trainoff.__file__).parent
    shutil.copytree(source, folder / "package" / "trainoff", ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(folder / "trainoff"), "zip", folder / "package")
